//! The comparison of two settings whose runs are paired: run k of both has the same seed.

use runner_spec::philox::Philox;
use serde::{Deserialize, Serialize};

use crate::sample::{Interval, Sample};
use crate::students_t::two_sided_p;

/// The number of pairs up to which the permutation test counts every assignment of signs.
const MAX_EXACT_PAIRS: usize = 30;
/// The number of random assignments of signs for more pairs.
pub const MONTE_CARLO_DRAWS: u32 = 100_000;
/// Sums of signed differences that differ by less than this share of the sum of magnitudes count as equal: they differ by rounding.
const ROUNDING: f64 = 1e-12;

/// The differences of two settings, pair by pair.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PairedComparison {
    /// The number of pairs, at least 1.
    pub n: usize,
    /// The mean of the differences a − b.
    pub difference: f64,
    /// The standard deviation of the differences; `None` for one pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sd: Option<f64>,
    /// The interval of the difference by Student's t; `None` for one pair, and if all differences are equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
    pub permutation: PermutationTest,
    /// The paired t-test; `None` for one pair, and if all differences are equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub t: Option<TTest>,
}

/// The two-sided sign-flip permutation test of the mean difference. Its null hypothesis is that each difference is as likely as its
/// negative. It makes no other assumption about their distribution (Fisher 1935, "The design of experiments", section 21).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PermutationTest {
    pub p: f64,
    pub method: PermutationMethod,
    /// The smallest p that this number of pairs can give.
    pub smallest_p: f64,
}

/// How the assignments of signs were counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermutationMethod {
    /// Every assignment.
    Exact,
    /// [`MONTE_CARLO_DRAWS`] random ones.
    MonteCarlo,
}

/// The two-sided paired t-test, exact if the differences are normal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TTest {
    pub statistic: f64,
    pub p: f64,
}

impl PairedComparison {
    /// Compares the paired, finite results `a` and `b`, with an interval of the probability `confidence`. `None` if there is no pair, or
    /// the lengths differ.
    #[must_use]
    pub fn new(a: &[f64], b: &[f64], confidence: f64) -> Option<Self> {
        if a.len() != b.len() {
            return None;
        }
        let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
        let Sample { n, mean, sd, interval } = Sample::new(&differences, confidence)?;
        // Differences that are equal up to rounding have no spread.
        let largest = a.iter().chain(b).map(|x| x.abs()).fold(0.0, f64::max);
        let spread = sd.filter(|sd| *sd > ROUNDING * largest);
        let t = spread.map(|sd| {
            let statistic = mean / (sd / (n as f64).sqrt());
            TTest { statistic, p: two_sided_p(statistic, n as f64 - 1.0) }
        });
        Some(Self {
            n,
            difference: mean,
            sd,
            interval: interval.filter(|_| spread.is_some()),
            permutation: permutation_test(&differences),
            t,
        })
    }
}

/// The smallest p that the permutation test can give for `n` pairs: the observed signs and their opposite, of all 2^n.
fn smallest_permutation_p(n: usize) -> f64 {
    let exact = 2_f64.powi(1 - i32::try_from(n).unwrap_or(i32::MAX));
    if n <= MAX_EXACT_PAIRS { exact.min(1.0) } else { 1.0 / (f64::from(MONTE_CARLO_DRAWS) + 1.0) }
}

fn permutation_test(differences: &[f64]) -> PermutationTest {
    let n = differences.len();
    let slack = ROUNDING * differences.iter().map(|d| d.abs()).sum::<f64>();
    let threshold = differences.iter().sum::<f64>().abs() - slack;
    let (p, method) = if n <= MAX_EXACT_PAIRS {
        (exact_p(differences, threshold), PermutationMethod::Exact)
    } else {
        (monte_carlo_p(differences, threshold), PermutationMethod::MonteCarlo)
    };
    PermutationTest { p, method, smallest_p: smallest_permutation_p(n) }
}

/// The share of all assignments of signs whose sum has at least the magnitude `threshold`. Each sum is one of the first half of the
/// differences plus one of the second, so that only the sums of halves are listed.
fn exact_p(differences: &[f64], threshold: f64) -> f64 {
    let sums = |half: &[f64]| {
        half.iter().fold(vec![0.0], |sums, d| sums.iter().flat_map(|sum| [sum + d, sum - d]).collect::<Vec<f64>>())
    };
    let (first, second) = differences.split_at(differences.len() / 2);
    let (first, mut second) = (sums(first), sums(second));
    second.sort_by(f64::total_cmp);
    let reaching = |a: &f64| {
        let below = second.partition_point(|b| a + b < threshold);
        // Without a difference, a sum is both at least the threshold and at most its negative.
        let low = second.partition_point(|b| a + b <= -threshold).min(below);
        (second.len() - below + low) as f64
    };
    first.iter().map(reaching).sum::<f64>() / (first.len() as f64 * second.len() as f64)
}

/// The share of random assignments of signs, the observed one among them, whose sum has at least the magnitude `threshold` (Phipson and
/// Smyth 2010, "Permutation p-values should never be zero").
fn monte_carlo_p(differences: &[f64], threshold: f64) -> f64 {
    let stream = Philox::new(0, "signs of a permutation test");
    let reaches = |draw: &u32| {
        let words = differences.chunks(128).enumerate().map(|(chunk, differences)| {
            let words = stream.block([*draw, chunk as u32, 0, 0]);
            let sign = |i: usize| words[i / 32] >> (i % 32) & 1 == 0;
            differences.iter().enumerate().map(|(i, d)| if sign(i) { *d } else { -d }).sum::<f64>()
        });
        words.sum::<f64>().abs() >= threshold
    };
    let reaching = (0..MONTE_CARLO_DRAWS).filter(reaches).count();
    (reaching as f64 + 1.0) / (f64::from(MONTE_CARLO_DRAWS) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(differences: &[f64]) -> PairedComparison {
        PairedComparison::new(differences, &vec![0.0; differences.len()], 0.95).unwrap()
    }

    #[test]
    fn signs_are_counted_as_by_hand() {
        // Of ±1 ±2 ±3, the sums 6 and −6 reach 6; 4 and −4 also reach 4, as do 6 and −6.
        assert_eq!(compare(&[1.0, 2.0, 3.0]).permutation.p, 0.25);
        assert_eq!(compare(&[-1.0, 2.0, 3.0]).permutation.p, 0.5);
        assert_eq!(compare(&[5.0]).permutation.p, 1.0);
        assert_eq!((1..=6).map(smallest_permutation_p).collect::<Vec<_>>(), [1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125]);
        assert_eq!(compare(&[0.1; 6]).permutation.p, 0.03125, "rounding of sums separates no equal ones");
    }

    #[test]
    fn equal_results_are_identical_and_show_no_difference() {
        let found = compare(&[0.0; 4]);
        assert_eq!((found.permutation.p, found.t, found.interval, found.difference), (1.0, None, None, 0.0));
        // Without any spread the t-test has nothing to divide by.
        let found = compare(&[0.5; 4]);
        assert_eq!((found.t, found.interval, found.permutation.p), (None, None, 0.125));
        let single = compare(&[1.0]);
        assert_eq!((single.n, single.sd, single.t, single.interval), (1, None, None, None));
        assert_eq!(PairedComparison::new(&[1.0], &[], 0.95), None);
        assert_eq!(PairedComparison::new(&[], &[], 0.95), None);
    }

    #[test]
    fn random_signs_agree_with_all_of_them() {
        let stream = Philox::new(3, "test");
        let differences: Vec<f64> = (0..20).map(|i| stream.normals(i)[0] + 0.3).collect();
        let threshold = differences.iter().sum::<f64>().abs();
        let (exact, drawn) = (exact_p(&differences, threshold), monte_carlo_p(&differences, threshold));
        // Five standard errors of the share.
        let error = (exact * (1.0 - exact) / f64::from(MONTE_CARLO_DRAWS)).sqrt();
        assert!((exact - drawn).abs() < 5.0 * error, "{exact} {drawn}");
        let many: Vec<f64> = (0..200).map(|i| stream.normals(i)[1] + 2.0).collect();
        let found = compare(&many).permutation;
        assert_eq!((found.method, found.p), (PermutationMethod::MonteCarlo, found.smallest_p));
    }
}
