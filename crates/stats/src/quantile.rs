//! Quantiles of drawn values.

use crate::sample::Interval;

/// The middle 95% of `drawn`, NaN if there is nothing.
pub(crate) fn middle(mut drawn: Vec<f64>) -> Interval {
    drawn.sort_by(f64::total_cmp);
    if drawn.is_empty() {
        return Interval { low: f64::NAN, high: f64::NAN };
    }
    Interval { low: quantile(&drawn, 0.025), high: quantile(&drawn, 0.975) }
}

/// The quantile of sorted values, interpolated between the two next to it, as NumPy does by default.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let position = share.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    // The difference of two infinities is not a number.
    if low == high { low } else { low + (position - position.floor()) * (high - low) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_interpolated() {
        assert_eq!(quantile(&[1.0, 2.0, 4.0], 0.75), 3.0);
        assert_eq!(quantile(&[1.0, f64::INFINITY, f64::INFINITY], 0.75), f64::INFINITY);
        let found = middle((0..=1000).rev().map(f64::from).collect());
        assert_eq!(found, Interval { low: 25.0, high: 975.0 });
    }
}
