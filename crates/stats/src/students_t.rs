//! Student's t distribution, central, and noncentral for the power of tests; and the F distribution.

use statrs::function::beta::beta_reg;
use statrs::function::erf::erfc;
use statrs::function::gamma::{gamma_lr, ln_gamma};

/// The number of halvings of an interval until a float has no digits left.
const HALVINGS: usize = 200;
/// The number of intervals of Simpson's rule for the noncentral distribution; even.
const INTERVALS: usize = 2000;
/// The number of standard deviations of the estimated scale that are integrated over on each side.
const INTEGRATED_DEVIATIONS: f64 = 12.0;

/// The probability that |T| is at least |`t`| for `freedom` degrees of freedom.
pub(crate) fn two_sided_p(t: f64, freedom: f64) -> f64 {
    if t.is_infinite() {
        return 0.0;
    }
    beta_reg(freedom / 2.0, 0.5, freedom / (freedom + t * t))
}

/// The probability that F is at least `ratio`, for `a` and `b` degrees of freedom.
pub(crate) fn f_tail(ratio: f64, a: f64, b: f64) -> f64 {
    beta_reg(b / 2.0, a / 2.0, b / (b + a * ratio))
}

/// The value that |T| exceeds with the probability `p`. The quantiles of `statrs` lack digits for few degrees of freedom.
pub(crate) fn two_sided_quantile(p: f64, freedom: f64) -> f64 {
    first_positive(|t| two_sided_p(t, freedom) <= p)
}

/// The value that a chi-square variable exceeds with the probability 1 − `p`.
pub(crate) fn chi_square_quantile(p: f64, freedom: f64) -> f64 {
    first_positive(|x| x > 0.0 && gamma_lr(freedom / 2.0, x / 2.0) >= p)
}

/// The smallest positive number from which on `holds` is true.
fn first_positive(holds: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while !holds(high) && high < 1e300 {
        high *= 2.0;
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if holds(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    f64::midpoint(low, high)
}

/// The probability that |T| exceeds `critical` if T is noncentral with the mean `noncentrality` before it is divided by its estimated
/// scale s: the integral over s of Φ(δ − c·s) + Φ(−δ − c·s), with √ν·s distributed as chi with ν degrees of freedom.
pub(crate) fn noncentral_two_sided_p(critical: f64, freedom: f64, noncentrality: f64) -> f64 {
    let normal = |z: f64| 0.5 * erfc(-z / std::f64::consts::SQRT_2);
    // The standard deviation of s is at most 1/√(2ν).
    let spread = INTEGRATED_DEVIATIONS / (2.0 * freedom).sqrt();
    let (low, high) = ((1.0 - spread).max(0.0), 1.0 + spread);
    let log_scale = (freedom / 2.0) * freedom.ln() - (freedom / 2.0 - 1.0) * 2_f64.ln() - ln_gamma(freedom / 2.0);
    // Over the root of s, because with few degrees of freedom the integrand falls steeply near 0.
    let (low, high) = (low.sqrt(), high.sqrt());
    let integrand = |root: f64| {
        let s = root * root;
        let outside = normal(noncentrality - critical * s) + normal(-noncentrality - critical * s);
        let log_density = log_scale + (2.0 * freedom - 1.0) * root.ln() - freedom * s * s / 2.0;
        2.0 * log_density.exp() * outside
    };
    let width = (high - low) / INTERVALS as f64;
    let inner: f64 =
        (1..INTERVALS).map(|i| if i % 2 == 1 { 4.0 } else { 2.0 } * integrand(low + i as f64 * width)).sum();
    ((integrand(low) + inner + integrand(high)) * width / 3.0).clamp(0.0, 1.0)
}
