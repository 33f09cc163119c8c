//! The comparison of two settings whose runs have seeds: pair by pair where they share seeds, else as two groups.

use serde::{Deserialize, Serialize};

use crate::paired::{PairedComparison, PermutationTest, TTest};
use crate::power::{seeds_needed, smallest_detectable_difference};
use crate::sample::{Interval, Sample};
use crate::students_t::{chi_square_quantile, two_sided_p, two_sided_quantile};

/// The probability with which the figures for a number of seeds show a difference.
pub const POWER: f64 = 0.8;
/// The probability with which seeds show a difference of interest.
const POWER_OF_INTEREST: f64 = 0.9;
/// The number of new seeds above which no number is given: the difference is then too small for the estimate to mean anything.
pub const MAX_NEW_SEEDS: usize = 100;
/// The number of common seeds from which on settings are compared pair by pair.
const MIN_PAIRS: usize = 2;
/// The smallest possible p of a permutation test that is reported.
const MAX_PERMUTATION_FLOOR: f64 = 0.01;

/// The test that decides on a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// The paired t-test.
    PairedT,
    /// The permutation test, because all differences are equal and a t-test has nothing to divide by.
    Permutation,
    /// Welch's t-test (1947, "The generalization of Student's problem when several different population variances are involved"): the
    /// settings have fewer than two seeds in common.
    Welch,
}

/// The comparison of two settings. A positive difference is a larger value of the setting.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Contrast {
    pub test: Test,
    /// The number of pairs, or of values of the smaller group.
    pub n: usize,
    /// The difference of means.
    pub difference: f64,
    /// The standard deviation of the differences of pairs; `None` for two groups, and if all differences are equal up to rounding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sd: Option<f64>,
    /// The interval of the difference; `None` if there is no spread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
    /// The two-sided p-value of `test`, without a correction for other settings.
    pub p: f64,
    /// The permutation test, which assumes no normal distribution, where there are enough pairs for a p below 0.01.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permutation: Option<PermutationTest>,
}

/// The smallest difference that a number of seeds shows, with the range that follows from the uncertainty of the noise.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Detectable {
    pub difference: f64,
    /// The interval for the true standard deviation: few seeds estimate it poorly.
    pub interval: Interval,
}

impl Contrast {
    /// Compares the values of two settings, each with its seed. `None` if they have too few seeds in common, and
    /// one of them has a single value.
    #[must_use]
    pub fn new<S: PartialEq>(own: &[(S, f64)], other: &[(S, f64)], confidence: f64) -> Option<Self> {
        let value_of = |seed: &S| other.iter().find(|(theirs, _)| theirs == seed).map(|(_, value)| *value);
        let pairs = own.iter().filter_map(|(seed, value)| Some((*value, value_of(seed)?)));
        let (a, b): (Vec<f64>, Vec<f64>) = pairs.unzip();
        if a.len() >= MIN_PAIRS {
            return PairedComparison::new(&a, &b, confidence).map(|paired| Self::of_pairs(&paired));
        }
        let values = |all: &[(S, f64)]| all.iter().map(|(_, value)| *value).collect::<Vec<f64>>();
        Self::of_groups(&values(own), &values(other), confidence)
    }

    fn of_pairs(paired: &PairedComparison) -> Self {
        let PairedComparison { n, difference, sd, interval, permutation, t } = *paired;
        let (test, p) = t.map_or((Test::Permutation, permutation.p), |TTest { p, .. }| (Test::PairedT, p));
        let sd = sd.filter(|_| t.is_some());
        let permutation = Some(permutation).filter(|test| test.smallest_p < MAX_PERMUTATION_FLOOR);
        Self { test, n, difference, sd, interval, p, permutation }
    }

    /// Welch's test. Groups without spread show nothing.
    fn of_groups(a: &[f64], b: &[f64], confidence: f64) -> Option<Self> {
        let (a, b) = (Sample::new(a, confidence)?, Sample::new(b, confidence)?);
        let squared_error = |group: Sample| group.sd.map(|sd| sd * sd / group.n as f64);
        let (va, vb) = (squared_error(a)?, squared_error(b)?);
        let (difference, error) = (a.mean - b.mean, (va + vb).sqrt());
        let freedom = (va + vb).powi(2) / (va * va / (a.n as f64 - 1.0) + vb * vb / (b.n as f64 - 1.0));
        let interval =
            (error > 0.0).then(|| Interval::around(difference, two_sided_quantile(1.0 - confidence, freedom) * error));
        let p = if error > 0.0 { two_sided_p(difference / error, freedom) } else { 1.0 };
        Some(Self { test: Test::Welch, n: a.n.min(b.n), difference, sd: None, interval, p, permutation: None })
    }

    /// True if values of equal seeds were compared.
    #[must_use]
    pub fn is_paired(&self) -> bool {
        self.test != Test::Welch
    }

    /// The smallest true difference that as many new pairs would show with the probability [`POWER`], at the level 1 − `confidence` of
    /// this pair of settings alone; `None` without pairs or spread.
    #[must_use]
    pub fn detectable(&self, confidence: f64) -> Option<Detectable> {
        let (sd, alpha) = (self.sd?, 1.0 - confidence);
        let difference = smallest_detectable_difference(self.n, sd, POWER, alpha)?;
        // It is proportional to the standard deviation, whose interval follows from the chi-square distribution.
        let freedom = self.n as f64 - 1.0;
        let bound = |p: f64| difference * (freedom / chi_square_quantile(p, freedom)).sqrt();
        Some(Detectable { difference, interval: Interval { low: bound(1.0 - alpha / 2.0), high: bound(alpha / 2.0) } })
    }

    /// The number of new pairs that show a true difference of the observed size with the probability [`POWER`]. With a difference `of_interest`
    /// it is the number that shows this difference with a probability of 90%, and equality within it with a probability of 80% if there is
    /// none: both need 3.24 standard errors. `None` without pairs or spread, above [`MAX_NEW_SEEDS`], and if the observed difference is below its standard error: then it
    /// estimates no difference.
    #[must_use]
    pub fn seeds_needed(&self, of_interest: Option<f64>, confidence: f64) -> Option<usize> {
        let sd = self.sd?;
        let observed = self.difference.abs();
        let difference = of_interest.or((observed * (self.n as f64).sqrt() >= sd).then_some(observed))?;
        let power = if of_interest.is_some() { POWER_OF_INTEREST } else { POWER };
        seeds_needed(sd, difference, power, 1.0 - confidence).filter(|seeds| *seeds <= MAX_NEW_SEEDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds(values: &[f64]) -> Vec<(usize, f64)> {
        values.iter().copied().enumerate().collect()
    }

    #[test]
    fn what_seeds_show_follows_from_their_noise() {
        let own = [0.2, 0.0, 0.1, 0.3];
        let found = Contrast::new(&seeds(&own), &seeds(&[0.0; 4]), 0.95).unwrap();
        let detectable = found.detectable(0.95).unwrap();
        assert_eq!(found.seeds_needed(Some(detectable.difference), 0.95), Some(5));
        // SciPy: (3 / chi2(3).ppf([0.975, 0.025])) ** 0.5.
        let Interval { low, high } = detectable.interval;
        let factors = [low, high].map(|end| end / detectable.difference);
        assert!((factors[0] - 0.566_489_55).abs() < 1e-6 && (factors[1] - 3.728_547_28).abs() < 1e-6, "{factors:?}");
        assert_eq!(found.seeds_needed(Some(1e-4), 0.95), None, "no number above a hundred");
        let even = Contrast::new(&seeds(&[0.2, -0.1, 0.1, -0.15]), &seeds(&[0.0; 4]), 0.95).unwrap();
        assert_eq!(even.seeds_needed(None, 0.95), None, "a difference below its standard error");
        assert_eq!(found.permutation, None, "four pairs have no p below 0.01");
    }

    #[test]
    fn eight_pairs_have_a_second_test_and_equal_differences_only_that() {
        let rises: Vec<f64> = (1..9).map(f64::from).collect();
        let found = Contrast::new(&seeds(&rises), &seeds(&[0.0; 8]), 0.95).unwrap();
        assert_eq!((found.test, found.permutation.unwrap().p), (Test::PairedT, 2.0 / 256.0));
        let found = Contrast::new(&seeds(&[0.5; 3]), &seeds(&[0.0; 3]), 0.95).unwrap();
        assert_eq!(
            (found.test, found.p, found.interval, found.detectable(0.95)),
            (Test::Permutation, 0.25, None, None)
        );
    }
}
