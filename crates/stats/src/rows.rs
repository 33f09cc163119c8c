//! The comparison of two settings on the same rows. Rows are a second source of noise in a loss, next to seeds: other rows of the same kind
//! would give another difference.

use serde::{Deserialize, Serialize};

use crate::sample::Interval;
use crate::students_t::{two_sided_p, two_sided_quantile};

/// The results of one evaluation, row by row: a row's summed loss and its tokens. For the items of a task, 1 for a right answer, 0 for a
/// wrong one, and one token each.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowLosses {
    pub losses: Vec<f64>,
    pub tokens: Vec<f64>,
}

/// The difference of two settings on the same rows, paired by row. The error tells how other rows of the same kind would differ with the same seeds; it
/// says nothing about other seeds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RowComparison {
    /// The number of rows, at least 2.
    pub rows: usize,
    /// The mean loss per token of a minus the mean of b, averaged over the pairs.
    pub difference: f64,
    /// The standard error of the difference over the rows, taken as independent.
    pub standard_error: f64,
    /// The interval of the difference by Student's t.
    pub interval: Interval,
    /// The two-sided p of no difference by the t-test; 1 if all rows differ by the same.
    pub p: f64,
}

impl RowComparison {
    /// Compares a and b, for which `pairs` holds one evaluation of each for every common seed, with an interval of the probability
    /// `confidence`. `None` if there is no pair, the rows differ in number or tokens, or there are fewer than two.
    #[must_use]
    pub fn new(pairs: &[(&RowLosses, &RowLosses)], confidence: f64) -> Option<Self> {
        let tokens = &pairs.first()?.0.tokens;
        let rows = tokens.len();
        let has_rows = |of: &RowLosses| of.tokens == *tokens && of.losses.len() == rows;
        let total: f64 = tokens.iter().sum();
        if rows < 2 || total <= 0.0 || !pairs.iter().all(|(a, b)| has_rows(a) && has_rows(b)) {
            return None;
        }
        let of_row = |row: usize| pairs.iter().map(|(a, b)| a.losses[row] - b.losses[row]).sum::<f64>();
        let differences: Vec<f64> = (0..rows).map(|row| of_row(row) / pairs.len() as f64).collect();
        let difference = differences.iter().sum::<f64>() / total;
        let residual = |(d, tokens): (&f64, &f64)| (d - difference * tokens).powi(2);
        let squares: f64 = differences.iter().zip(tokens).map(residual).sum();
        let freedom = rows as f64 - 1.0;
        let standard_error = (squares * rows as f64 / freedom).sqrt() / total;
        let half = two_sided_quantile(1.0 - confidence, freedom) * standard_error;
        // Without spread nothing shows how other rows would differ.
        let p = if standard_error > 0.0 { two_sided_p(difference / standard_error, freedom) } else { 1.0 };
        let interval = Interval { low: difference - half, high: difference + half };
        Some(Self { rows, difference, standard_error, interval, p })
    }
}

#[cfg(test)]
mod tests {
    use runner_spec::philox::Philox;

    use super::*;

    fn rows(losses: &[f64], tokens: &[f64]) -> RowLosses {
        RowLosses { losses: losses.to_vec(), tokens: tokens.to_vec() }
    }

    /// By hand: rows of 2, 2 and 4 tokens with the differences 2, 4 and 10 have the mean 2 and the residuals −2, 0 and 2, so the error is
    /// √(8 · 3/2) / 8, and t(0.975, 2) = 4.302653.
    #[test]
    fn rows_are_compared_as_by_hand() {
        let tokens = [2.0, 2.0, 4.0];
        let (a, b) = (rows(&[9.0, 8.0, 30.0], &tokens), rows(&[7.0, 4.0, 20.0], &tokens));
        let found = RowComparison::new(&[(&a, &b)], 0.95).unwrap();
        let error = 12_f64.sqrt() / 8.0;
        assert_eq!((found.rows, found.difference), (3, 2.0));
        assert!((found.standard_error - error).abs() < 1e-12);
        assert!((found.interval.half_width() - 4.302_653 * error).abs() < 1e-6, "{found:?}");
        // Of Student's t with two degrees of freedom, P(|T| ≥ t) = 1 − t / √(2 + t²).
        let t = 2.0 / error;
        assert!((found.p - (1.0 - t / (2.0 + t * t).sqrt())).abs() < 1e-12);
        // A second seed with the differences 0, 2 and 2 halves the distances: the means are 1, 3 and 6.
        let other = rows(&[7.0, 6.0, 22.0], &tokens);
        let both = RowComparison::new(&[(&a, &b), (&other, &b)], 0.95).unwrap();
        // The residuals from 1.25 are −1.5, 0.5 and 1.
        assert!((both.difference - 1.25).abs() < 1e-12);
        assert!((both.standard_error - (3.5_f64 * 1.5).sqrt() / 8.0).abs() < 1e-12);
        let swapped = RowComparison::new(&[(&b, &a)], 0.95).unwrap();
        assert_eq!((swapped.difference, swapped.p), (-found.difference, found.p));
    }

    #[test]
    fn only_the_same_rows_are_compared() {
        let compare = |a: &RowLosses, b: &RowLosses| RowComparison::new(&[(a, b)], 0.95);
        let two = rows(&[1.0, 2.0], &[1.0, 2.0]);
        assert_eq!(compare(&two, &rows(&[1.0, 2.0], &[2.0, 1.0])), None, "other tokens");
        assert_eq!(compare(&two, &rows(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0])), None);
        assert_eq!(compare(&rows(&[1.0], &[1.0]), &rows(&[1.0], &[1.0])), None, "one row");
        assert_eq!(RowComparison::new(&[], 0.95), None);
        let same = compare(&two, &two).unwrap();
        assert_eq!((same.difference, same.standard_error, same.p), (0.0, 0.0, 1.0));
        let shifted = compare(&rows(&[2.0, 4.0], &[1.0, 2.0]), &two).unwrap();
        assert_eq!(
            (shifted.difference, shifted.standard_error, shifted.p),
            (1.0, 0.0, 1.0),
            "without spread nothing is shown"
        );
    }

    /// By hand: of ten items, a alone is right on three and b alone on one. The differences have the mean 0.2 and the squares 4, so the error
    /// is √((4 − 10 · 0.04) / 9 / 10) = 0.2, and t is 1. SciPy: 2 * t(9).sf(1).
    #[test]
    fn items_are_compared_as_by_hand() {
        let items = |right: [u8; 10]| rows(&right.map(f64::from), &[1.0; 10]);
        let (a, b) = (items([1, 1, 1, 1, 1, 0, 0, 0, 0, 0]), items([1, 1, 0, 0, 0, 1, 0, 0, 0, 0]));
        let found = RowComparison::new(&[(&a, &b)], 0.95).unwrap();
        assert!((found.difference - 0.2).abs() < 1e-12);
        assert!((found.standard_error - (3.6_f64 / 90.0).sqrt()).abs() < 1e-12);
        assert!((found.p - 0.343_436_396_137_915).abs() < 1e-12, "{found:?}");
        assert_eq!(RowComparison::new(&[(&a, &a)], 0.95).unwrap().p, 1.0);
    }

    /// Rows of different lengths with an effect of the row that both models share, and that is larger than the difference. The intervals contain
    /// the true difference in 95% of 2,000 draws, within four standard errors of that share, and the errors of the single losses are
    /// several times as large.
    #[test]
    fn the_interval_covers_the_difference_of_shared_rows() {
        const DRAWS: u64 = 2000;
        const ROWS: u64 = 40;
        let stream = Philox::new(7, "rows");
        let mut covered = 0;
        for draw in 0..DRAWS {
            let (mut a, mut b) = (RowLosses::default(), RowLosses::default());
            for row in 0..ROWS {
                let [shared, own_a, own_b, _] = stream.normals(draw * ROWS + row);
                let tokens = 20.0 + (row % 7) as f64 * 10.0;
                a.losses.push(tokens * (3.02 + shared + 0.1 * own_a));
                b.losses.push(tokens * (3.0 + shared + 0.1 * own_b));
                a.tokens.push(tokens);
                b.tokens.push(tokens);
            }
            let found = RowComparison::new(&[(&a, &b)], 0.95).unwrap();
            covered += u64::from(found.interval.contains(0.02));
            assert!(found.standard_error < 0.05, "unpaired it would be about 1/√40: {found:?}");
        }
        let share = covered as f64 / DRAWS as f64;
        assert!((share - 0.95).abs() < 4.0 * (0.95 * 0.05 / DRAWS as f64).sqrt(), "{share}");
    }
}
