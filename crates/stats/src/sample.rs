//! The mean of a sample, and what it says about the mean of the population.

use serde::{Deserialize, Serialize};

use crate::students_t::two_sided_quantile;

/// An interval with both ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

impl Interval {
    /// The interval of `half_width` on each side of `center`.
    #[must_use]
    pub fn around(center: f64, half_width: f64) -> Self {
        Self { low: center - half_width, high: center + half_width }
    }

    /// Half its width: the `±` of a symmetric interval.
    #[must_use]
    pub fn half_width(self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// True if `value` is in the interval or at one of its ends.
    #[must_use]
    pub fn contains(self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// The summary of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The number of values, at least 1.
    pub n: usize,
    pub mean: f64,
    /// The standard deviation with n − 1 in its denominator; `None` for one value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sd: Option<f64>,
    /// The interval of the mean by Student's t, exact if the values are normal; `None` for one value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
}

impl Sample {
    /// Summarizes `values`, which must be finite, with the interval that contains the mean of the population with the probability
    /// `confidence`, such as 0.95. `None` if there is no value.
    #[must_use]
    pub fn new(values: &[f64], confidence: f64) -> Option<Self> {
        let n = values.len();
        let mean = mean(values)?;
        if n == 1 {
            return Some(Self { n, mean, sd: None, interval: None });
        }
        let freedom = n as f64 - 1.0;
        // Equal values have no deviation, even if their mean was rounded.
        let is_constant = values.iter().all(|value| *value == values[0]);
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let sd = if is_constant { 0.0 } else { (squares / freedom).sqrt() };
        let half = two_sided_quantile(1.0 - confidence, freedom) * sd / (n as f64).sqrt();
        Some(Self { n, mean, sd: Some(sd), interval: Some(Interval::around(mean, half)) })
    }
}

/// The mean; `None` of nothing.
fn mean(values: &[f64]) -> Option<f64> {
    let first = *values.first()?;
    // Sums of differences keep the digits of close values, and equal values have exactly their value as the mean.
    Some(first + values.iter().map(|value| value - first).sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_a_sample_equal_those_by_hand() {
        let sample = Sample::new(&[1.0, 2.0, 3.0], 0.95).unwrap();
        // t(0.975, 2) = 4.302653, and the standard error is 1/√3.
        let interval = sample.interval.unwrap();
        assert_eq!((sample.n, sample.mean, sample.sd), (3, 2.0, Some(1.0)));
        assert!((interval.half_width() - 4.302_653 / 3_f64.sqrt()).abs() < 1e-6, "{interval:?}");
        assert!(interval.contains(2.0) && !interval.contains(5.0));
    }

    #[test]
    fn equal_values_have_no_deviation_and_one_value_has_no_interval() {
        let sample = Sample::new(&[0.1; 3], 0.95).unwrap();
        assert_eq!((sample.mean, sample.sd), (0.1, Some(0.0)));
        assert_eq!(sample.interval, Some(Interval { low: 0.1, high: 0.1 }));
        assert_eq!(Sample::new(&[7.0], 0.95), Some(Sample { n: 1, mean: 7.0, sd: None, interval: None }));
        assert_eq!(Sample::new(&[], 0.95), None);
    }
}
