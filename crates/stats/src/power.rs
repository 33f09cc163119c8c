//! The power of the paired t-test: which differences a number of seeds shows, and how many seeds a difference needs.

use crate::students_t::{noncentral_two_sided_p, two_sided_quantile};

/// The largest number of seeds that is considered.
const MAX_SEEDS: usize = 1_000_000;
/// The number of halvings until a difference has no digits left.
const HALVINGS: usize = 60;

/// The probability that the two-sided paired t-test of `n` pairs at the level `alpha` shows a true difference of `difference`, if the
/// differences are normal with the standard deviation `sd` (Cohen 1988, "Statistical power analysis", section 2.5). 0 for fewer than two
/// pairs.
#[must_use]
pub fn paired_t_power(n: usize, sd: f64, difference: f64, alpha: f64) -> f64 {
    if n < 2 {
        return 0.0;
    }
    if sd == 0.0 {
        return if difference == 0.0 { alpha } else { 1.0 };
    }
    let freedom = n as f64 - 1.0;
    let noncentrality = difference.abs() / sd * (n as f64).sqrt();
    noncentral_two_sided_p(two_sided_quantile(alpha, freedom), freedom, noncentrality)
}

/// The smallest difference that `n` pairs, whose differences have the standard deviation `sd`, show with the probability `power` at the
/// level `alpha`; `None` for fewer than two pairs.
#[must_use]
pub fn smallest_detectable_difference(n: usize, sd: f64, power: f64, alpha: f64) -> Option<f64> {
    if n < 2 {
        return None;
    }
    if sd == 0.0 {
        return Some(0.0);
    }
    let shows = |difference: f64| paired_t_power(n, sd, difference, alpha) >= power;
    let (mut low, mut high) = (0.0, sd);
    while !shows(high) && high < 1e6 * sd {
        high *= 2.0;
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if shows(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(high)
}

/// The smallest number of pairs that shows a difference of `difference` with the probability `power` at the level `alpha`, if the
/// differences of pairs have the standard deviation `sd`; at least 2. `None` if more than a million would be needed.
#[must_use]
pub fn seeds_needed(sd: f64, difference: f64, power: f64, alpha: f64) -> Option<usize> {
    let shows = |n: usize| paired_t_power(n, sd, difference, alpha) >= power;
    let (mut low, mut high) = (1, 2);
    while !shows(high) {
        (low, high) = (high, high * 2);
        if high > MAX_SEEDS {
            return None;
        }
    }
    while high - low > 1 {
        let middle = usize::midpoint(low, high);
        if shows(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_and_differences_agree() {
        let smallest = smallest_detectable_difference(5, 0.004, 0.8, 0.05).unwrap();
        assert!((paired_t_power(5, 0.004, smallest, 0.05) - 0.8).abs() < 1e-9);
        assert_eq!(seeds_needed(0.004, smallest, 0.8, 0.05), Some(5));
        assert_eq!(seeds_needed(0.004, smallest * 0.99, 0.8, 0.05), Some(6));
        // Without a difference, the test claims one as often as its level says.
        assert!((paired_t_power(5, 1.0, 0.0, 0.05) - 0.05).abs() < 1e-9);
    }

    #[test]
    fn without_spread_two_seeds_are_enough() {
        assert_eq!(seeds_needed(0.0, 0.1, 0.8, 0.05), Some(2));
        assert_eq!(smallest_detectable_difference(2, 0.0, 0.8, 0.05), Some(0.0));
        assert_eq!(smallest_detectable_difference(1, 1.0, 0.8, 0.05), None);
        assert_eq!(seeds_needed(1.0, 1e-9, 0.8, 0.05), None);
        assert_eq!(paired_t_power(1, 1.0, 9.0, 0.05), 0.0);
    }
}
