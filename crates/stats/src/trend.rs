//! How losses change with scale, before a law is fitted to them: whether they fall, and whether they fall as a power law can.
//!
//! ln L of L = E + A·x^−α with E ≥ 0 is convex in ln x: each doubling lowers it by at most as much as the one before. So a quadratic of ln L
//! in ln x that bends the other way contradicts every such law, whatever its parameters.

use crate::noise::one_sided_p;
use crate::polynomial::Polynomial;
use crate::students_t::{f_tail, two_sided_p};

/// The level of the one-sided tests. A power law without an irreducible loss is straight, so the test of the curve refuses one in a hundred.
const LEVEL: f64 = 0.01;
/// The level of the test whether rungs deviate from a curve by more than their runs do from each other. Where it misses that, runs count for
/// more than they show: at 5% the tests above would refuse up to 6% of right laws, at this level 2.5%.
const LACK_OF_FIT_LEVEL: f64 = 0.25;

/// How losses change with scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trend {
    /// They fall, and not faster and faster.
    Falls,
    /// Nothing shows that they fall, neither a straight line through ln L, nor the order of the rungs, nor the first and the last one: they
    /// are flat, rise, or go up and down.
    NotShownToFall,
    /// They fall faster and faster.
    FallsFasterAndFaster,
}

/// The trend of positive `losses` at the positive `scales`. Runs of a rung have the same scale. Too few rungs for a test (two for the line,
/// three for the curve, without more runs) count as falling.
#[must_use]
pub fn trend(scales: &[f64], losses: &[f64]) -> Trend {
    let x: Vec<f64> = scales.iter().map(|scale| scale.ln()).collect();
    let y: Vec<f64> = losses.iter().map(|loss| loss.ln()).collect();
    let rungs = Rungs::new(&x, &y);
    let on_a_line = |c: Coefficient| c.value < 0.0 && c.p / 2.0 < LEVEL;
    let falls = highest_coefficient(&x, &y, &rungs, 1).is_none_or(on_a_line)
        || rungs.fall_in_order()
        || rungs.fall_from_end_to_end();
    let bends =
        rungs.end_lower() && highest_coefficient(&x, &y, &rungs, 2).is_some_and(|c| c.value < 0.0 && c.p / 2.0 < LEVEL);
    match (bends, falls) {
        (true, _) => Trend::FallsFasterAndFaster,
        (false, true) => Trend::Falls,
        (false, false) => Trend::NotShownToFall,
    }
}

/// The rungs of runs, in the order of x.
struct Rungs {
    x: Vec<f64>,
    means: Vec<f64>,
    /// The number of runs of each.
    counts: Vec<usize>,
    /// The sum of squares within rungs, and its degrees of freedom.
    within: f64,
    freedom: usize,
}

impl Rungs {
    fn new(x: &[f64], y: &[f64]) -> Self {
        let mut places = x.to_vec();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let members =
            |place: &f64| -> Vec<f64> { x.iter().zip(y).filter(|(x, _)| *x == place).map(|(_, y)| *y).collect() };
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let all: Vec<Vec<f64>> = places.iter().map(members).collect();
        let within = all.iter().map(|own| own.iter().map(|y| (y - mean(own)).powi(2)).sum::<f64>()).sum();
        let (means, counts) = all.iter().map(|own| (mean(own), own.len())).unzip();
        Self { freedom: x.len() - places.len(), x: places, means, counts, within }
    }

    fn end_lower(&self) -> bool {
        self.means.last() < self.means.first()
    }

    /// True if the order of rungs shows a fall. All orders of four rungs are too few for the level: there only a fall at each rung does.
    fn fall_in_order(&self) -> bool {
        let rungs = self.x.len();
        let least = (1..=rungs).map(|n| 1.0 / n as f64).product::<f64>();
        rungs > 3 && self.order_p() <= LEVEL.max(least) * (1.0 + 1e-9)
    }

    /// True if the largest rung is below the smallest one by more than seeds are apart.
    fn fall_from_end_to_end(&self) -> bool {
        let ([first, .., last], [n, .., m]) = (self.means.as_slice(), self.counts.as_slice()) else { return false };
        let error = (self.within / self.freedom as f64 * (1.0 / *n as f64 + 1.0 / *m as f64)).sqrt();
        one_sided_p(first - last, error, self.freedom) < LEVEL
    }

    /// The probability that the means in a random order fall with x in at least as many pairs as these do (Mann 1945, "Nonparametric tests
    /// against trend"). Losses that fall steeply and then hardly are not on a line.
    fn order_p(&self) -> f64 {
        let means = &self.means;
        let rises = (1..means.len()).map(|j| means[..j].iter().filter(|before| **before <= means[j]).count());
        let found: usize = rises.sum();
        // The share of the orders of n numbers with each number of rising pairs: the last one of n may rise above 0 to n - 1 others.
        let mut shares = vec![1.0];
        for n in 2..=means.len() {
            let more = (0..shares.len() + n - 1).map(|k| {
                let first = (k + 1).saturating_sub(n);
                shares.iter().skip(first).take(k + 1 - first).sum::<f64>() / n as f64
            });
            shares = more.collect();
        }
        shares.iter().take(found + 1).sum()
    }
}

struct Coefficient {
    value: f64,
    /// Two-sided.
    p: f64,
}

/// The coefficient of x^`degree` of the polynomial of this degree through (x, y) by least squares. Its error follows from the scatter of runs, or of
/// rungs, if rungs deviate from the polynomial by more than their runs do from each other. `None` if nothing shows the error.
fn highest_coefficient(x: &[f64], y: &[f64], rungs: &Rungs, degree: usize) -> Option<Coefficient> {
    let own = rungs.x.len().checked_sub(degree + 1)?;
    let of_runs = Polynomial::fit(x, y, degree)?;
    let (a, b, within) = (own as f64, rungs.freedom as f64, rungs.within);
    // Rounding may leave less than nothing.
    let lack = (of_runs.sum_of_squares - within).max(0.0);
    let is_lack = || if within > 0.0 { f_tail(lack / a / (within / b), a, b) < LACK_OF_FIT_LEVEL } else { lack > 0.0 };
    let deviates = rungs.freedom == 0 || (own > 0 && is_lack());
    let (fit, freedom) =
        if deviates { (Polynomial::fit(&rungs.x, &rungs.means, degree)?, own) } else { (of_runs, own + rungs.freedom) };
    if freedom == 0 {
        return None;
    }
    let value = fit.coefficients[degree];
    let error = (fit.sum_of_squares / freedom as f64 * fit.inverse).sqrt();
    // Numbers on a line without noise, up to their rounding.
    let is_exact = error <= 1e-12 * y.iter().fold(f64::MIN_POSITIVE, |most, y| most.max(y.abs()));
    let p =
        if is_exact { f64::from(u8::from(value.abs() <= 1e-9)) } else { two_sided_p(value / error, freedom as f64) };
    Some(Coefficient { value, p })
}

#[cfg(test)]
mod tests {
    use runner_spec::philox::Philox;

    use super::*;

    /// `seeds` runs of rungs 2.5 times apart, with the noise of a run and of a rung.
    fn ladder(
        law: impl Fn(f64) -> f64,
        rungs: usize,
        seeds: usize,
        noise: [f64; 2],
        number: u64,
    ) -> (Vec<f64>, Vec<f64>) {
        let stream = Philox::new(number, "a ladder");
        let run = |i: usize| {
            let (rung, x) = (i / seeds, 1e9 * 2.5_f64.powi((i / seeds) as i32));
            let ([own, ..], [_, of_rung, ..]) = (stream.normals(i as u64), stream.normals(1000 + rung as u64));
            (x, law(x) * (noise[0] * own + noise[1] * of_rung).exp())
        };
        (0..rungs * seeds).map(run).unzip()
    }

    fn share(expected: Trend, law: impl Fn(f64) -> f64, rungs: usize, seeds: usize, noise: [f64; 2]) -> f64 {
        let found = (0..1000).filter(|number| {
            let (x, y) = ladder(&law, rungs, seeds, noise, *number);
            trend(&x, &y) == expected
        });
        found.count() as f64 / 1000.0
    }

    #[test]
    fn losses_that_no_law_describes_are_told_from_those_that_one_does() {
        let chinchilla = |x: f64| 1.7 + 12.0 * (x / 1e9).powf(-0.15);
        // One in a hundred is allowed, with noise of rungs three, and three standard errors of such a share are 0.016.
        for (rungs, seeds) in [(5, 1), (5, 3), (8, 2)] {
            for noise in [[0.003, 0.0], [0.01, 0.0], [0.003, 0.01]] {
                assert!(share(Trend::Falls, chinchilla, rungs, seeds, noise) > 0.98, "{rungs} {seeds} {noise:?}");
                let straight =
                    share(Trend::FallsFasterAndFaster, |x| 30.0 * (x / 1e9).powf(-0.08), rungs, seeds, noise);
                assert!(straight < 0.04, "{straight} with {rungs} {seeds} {noise:?}");
                let flat = share(Trend::NotShownToFall, |_| 4.0, rungs, seeds, noise);
                // Where rungs are apart by more than their seeds, some ladders end lower than they began: the fit's own tests see that.
                assert!(flat > 0.96 || noise[1] > 0.0, "{flat} with {rungs} {seeds} {noise:?}");
            }
        }
        // Exponents of 0.029, 0.059, 0.064 and 0.076 between rungs, as a real ladder had.
        let steeper = |x: f64| 3.0 * (-0.03 * (x / 1e9).ln() - 0.008 * (x / 1e9).ln().powi(2)).exp();
        assert!(share(Trend::FallsFasterAndFaster, steeper, 5, 3, [0.003, 0.0]) > 0.95);
        assert!(share(Trend::NotShownToFall, |x| 3.0 * (x / 1e9).powf(0.02), 5, 3, [0.01, 0.0]) > 0.99);
        // A law that soon is flat.
        let plateau = |x: f64| 1.7 + 1.8 * (x / 1e9).powf(-1.0);
        for (rungs, seeds) in [(4, 3), (5, 2), (8, 2)] {
            assert!(share(Trend::Falls, plateau, rungs, seeds, [0.01, 0.0]) > 0.98, "{rungs} {seeds}");
        }
    }

    #[test]
    fn exact_numbers_have_a_trend_too() {
        let x: Vec<f64> = (0..6).map(|i| 1e9 * 4_f64.powi(i)).collect();
        let of = |law: &dyn Fn(f64) -> f64| trend(&x, &x.iter().map(|x| law(*x)).collect::<Vec<_>>());
        assert_eq!(of(&|x| 30.0 * x.powf(-0.1)), Trend::Falls);
        assert_eq!(of(&|x| 2.0 + 30.0 * x.powf(-0.1)), Trend::Falls);
        assert_eq!(of(&|_| 4.0), Trend::NotShownToFall);
        assert_eq!(of(&|x| 1.0 + 0.01 * x.ln()), Trend::NotShownToFall);
        assert_eq!(of(&|x| 9.0 - 0.2 * x.ln()), Trend::FallsFasterAndFaster);
        assert_eq!(of(&|x| 1.0 + 0.5 * (x / 1e9).powi(-5)), Trend::Falls);
        // Of the 24 orders of four numbers, 1, 3, 5, 6, 5, 3 and 1 have 0 to 6 rising pairs.
        let p = |y: [f64; 4]| Rungs::new(&[1.0, 2.0, 3.0, 4.0], &y).order_p() * 24.0;
        assert!(
            [(p([4.0, 3.0, 2.0, 1.0]), 1.0), (p([4.0, 3.0, 1.0, 2.0]), 4.0), (p([1.0, 2.0, 3.0, 4.0]), 24.0)]
                .iter()
                .all(|(p, expected)| (p - expected).abs() < 1e-9)
        );
        assert_eq!(trend(&[1.0, 2.0], &[3.0, 2.0]), Trend::Falls, "two numbers show no error");
        // With several seeds that are equal, or symmetric around a line.
        let twice: Vec<f64> = x.iter().flat_map(|x| [*x; 3]).collect();
        assert_eq!(trend(&twice, &[2.5; 18]), Trend::NotShownToFall);
        let seeds: Vec<f64> =
            twice.iter().enumerate().map(|(i, x)| 30.0 * x.powf(-0.1) * [0.99, 1.0, 1.0 / 0.99][i % 3]).collect();
        assert_eq!(trend(&twice, &seeds), Trend::Falls);
        // Four rungs of a law that soon is flat.
        let four: Vec<f64> = (0..4).map(|i| 1e9 * 4_f64.powi(i)).collect();
        let of_four = |law: &dyn Fn(f64) -> f64| trend(&four, &four.iter().map(|x| law(*x)).collect::<Vec<_>>());
        assert_eq!(of_four(&|x| 1.7 + 1.8 * (x / 1e9).powf(-0.5)), Trend::Falls);
        assert_eq!(of_four(&|x| 1.7 + 0.01 * (x / 1e9).sin()), Trend::NotShownToFall);
    }
}
