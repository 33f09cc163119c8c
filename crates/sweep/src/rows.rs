//! The results of a run by row, with which settings are compared on the same rows.

use std::path::Path;
use std::sync::Arc;

use runner_record::rows::read_rows;
use runner_spec::event::Evaluation;
use runner_spec::measure::Measure;
use runner_stats::RowLosses;

/// The mean over rows and the recorded number differ by at most this share, because each sum is stored as a 32-bit number.
const ROUNDING: f64 = 1e-6;

/// The results by row that gave `metric` its value in `evaluation` of the run directory `run`: for a loss the sums and tokens of rows, for an
/// accuracy the items. `None` if the run does not keep them, or their mean is another number.
#[must_use]
pub fn rows_of(run: &Path, evaluation: &Evaluation, metric: &Measure) -> Option<Arc<RowLosses>> {
    let (value, rows) = (evaluation.measured.get(metric)?, read_rows(run, evaluation.step)?);
    let found = if let Some(task) = metric.task() {
        let bit = Measure::all_of_task(task).position(|measure| measure == *metric)?;
        let losses: Vec<f64> = rows.items.get(task)?.bytes().map(|digit| f64::from(digit >> bit & 1)).collect();
        RowLosses { tokens: vec![1.0; losses.len()], losses }
    } else {
        let factor = metric.error_factor(evaluation.val_loss(), Some(value))?;
        let losses = rows.losses.iter().map(|loss| f64::from(*loss) * factor).collect();
        RowLosses { losses, tokens: rows.tokens.iter().copied().map(f64::from).collect() }
    };
    let mean = found.losses.iter().sum::<f64>() / found.tokens.iter().sum::<f64>();
    ((mean - value).abs() <= ROUNDING * value.abs()).then(|| Arc::new(found))
}

#[cfg(test)]
mod tests {
    use runner_spec::measure::Measured;

    use super::*;

    #[test]
    fn rows_are_those_of_the_evaluation_and_have_its_mean() {
        let dir = tempfile::tempdir().unwrap();
        let lines = "{\"step\":2,\"losses\":[1.0,1.0],\"tokens\":[1,3]}\n\
            {\"step\":4,\"losses\":[2.0,4.0],\"tokens\":[1,3],\"items\":{\"quiz\":\"0174\"}}\n";
        std::fs::write(dir.path().join("rows.jsonl"), lines).unwrap();
        let measure = |key| Measure::of_key(key).unwrap();
        let measured = [("val_loss", 1.5), ("val_bits_per_byte", 0.75), ("val_perplexity", 4.48), ("quiz_acc", 0.5)];
        let measured: Measured = measured.into_iter().map(|(key, value)| (measure(key), value)).collect();
        let of = |step, key| {
            rows_of(dir.path(), &Evaluation { measured: measured.clone(), ..Evaluation::new(step) }, &measure(key))
        };
        let rows = |losses: &[f64], tokens: &[f64]| {
            Some(Arc::new(RowLosses { losses: losses.to_vec(), tokens: tokens.to_vec() }))
        };
        assert_eq!(of(4, "val_loss"), rows(&[2.0, 4.0], &[1.0, 3.0]));
        assert_eq!(of(4, "val_bits_per_byte"), rows(&[1.0, 2.0], &[1.0, 3.0]));
        assert_eq!(of(4, "quiz_acc"), rows(&[0.0, 1.0, 1.0, 0.0], &[1.0; 4]));
        assert_eq!(of(4, "val_perplexity"), None, "a perplexity is not a mean over rows");
        assert_eq!(of(2, "val_loss"), None, "another mean");
        assert_eq!((of(3, "val_loss"), of(2, "quiz_acc"), of(4, "train_loss")), (None, None, None));
    }
}
