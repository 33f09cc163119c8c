//! The length of a run: `train.steps`, `train.epochs` or `train.tokens` as optimizer steps.

use crate::error::{PlanError, Result, refuse};
use runner_spec::experiment::Train;
use runner_spec::program::RowSequence;

/// The steps of the run, rounded down, including those that a fork inherits. A step reads `sequences` rows of `length` tokens in the order
/// of `rows`. Tokens count positions, padding included.
///
/// # Errors
/// If that makes no step, or if not exactly one of the three is given.
pub(crate) fn run_steps(train: &Train, rows: &RowSequence, sequences: usize, length: usize) -> Result<u64> {
    let Some(per_step) = (sequences as u64).checked_mul(length as u64) else {
        refuse!("batch.sequences", "{sequences} sequences of {length} tokens are more than can be counted")
    };
    let too_short = |key: &'static str, arithmetic: String, steps: f64, least: String| {
        let message =
            format!("{arithmetic} = {steps:.3} steps, but a run needs at least 1; use {key}: {least} or more");
        Err(PlanError::value(key, message))
    };
    let steps = match (train.steps, train.epochs, train.tokens) {
        (Some(0), None, None) => refuse!("train.steps", "must be at least 1, got 0"),
        (Some(steps), None, None) => steps,
        (None, Some(epochs), None) => {
            if !epochs.is_finite() || epochs <= 0.0 {
                refuse!("train.epochs", "{epochs} is not a positive number");
            }
            let exact = rows.steps_of_epochs(epochs);
            if exact < 1.0 {
                let rows = rows.epoch_rows();
                // Rounded up in the third digit, so that the advice is enough.
                let least = (sequences as f64 / rows as f64 * 1e3).ceil() / 1e3;
                let arithmetic = format!("{epochs} · {rows} rows / {sequences} sequences a step");
                return too_short("train.epochs", arithmetic, exact, least.to_string());
            }
            exact.floor() as u64
        }
        (None, None, Some(tokens)) => {
            if tokens < per_step {
                let arithmetic = format!("{tokens} / ({sequences} sequences · {length} tokens)");
                return too_short("train.tokens", arithmetic, tokens as f64 / per_step as f64, per_step.to_string());
            }
            rows.steps_of_tokens(tokens)
        }
        (steps, epochs, tokens) => {
            let given =
                [steps.is_some(), epochs.is_some(), tokens.is_some()].into_iter().filter(|&given| given).count();
            refuse!("train", "must have exactly one of steps, epochs and tokens, got {given}")
        }
    };
    // Positions in the data order and tokens seen are u64.
    if steps.checked_mul(per_step).is_none() {
        refuse!("train", "{steps} steps of {sequences}·{length} tokens are more than can be counted; use fewer");
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_spec::experiment::Recompute;
    use runner_spec::program::{DataPosition, RowOrder};

    fn rows(rows: u64) -> RowSequence {
        RowSequence::new(64, 8, RowOrder::default(), None, rows)
    }

    fn train(steps: Option<u64>, epochs: Option<f64>, tokens: Option<u64>) -> Train {
        Train { steps, epochs, tokens, clip_norm: None, recompute: Recompute::None }
    }

    #[test]
    fn each_way_of_saying_it() {
        assert_eq!(run_steps(&train(Some(7), None, None), &rows(1), 64, 8), Ok(7));
        // 1,000·2.5 / 64 = 39.06.
        assert_eq!(run_steps(&train(None, Some(2.5), None), &rows(1_000), 64, 8), Ok(39));
        // 10,000 / (64·8) = 19.5.
        assert_eq!(run_steps(&train(None, None, Some(10_000)), &rows(1_000), 64, 8), Ok(19));
        assert_eq!(run_steps(&train(None, None, Some(512)), &rows(1_000), 64, 8), Ok(1));
    }

    #[test]
    fn too_short_and_too_long() {
        let fails = |train| run_steps(&train, &rows(1_000), 64, 8).expect_err("no run").to_string();
        insta::assert_snapshot!(fails(train(None, Some(0.05), None)), @"train.epochs: 0.05 · 1000 rows / 64 sequences a step = 0.781 steps, but a run needs at least 1; use train.epochs: 0.064 or more");
        insta::assert_snapshot!(fails(train(None, None, Some(500))), @"train.tokens: 500 / (64 sequences · 8 tokens) = 0.977 steps, but a run needs at least 1; use train.tokens: 512 or more");
        insta::assert_snapshot!(fails(train(Some(u64::MAX), None, None)), @"train: 18446744073709551615 steps of 64·8 tokens are more than can be counted; use fewer");
        insta::assert_snapshot!(fails(train(None, Some(f64::NAN), None)), @"train.epochs: NaN is not a positive number");
        insta::assert_snapshot!(fails(train(None, Some(1e300), None)), @"train: 18446744073709551615 steps of 64·8 tokens are more than can be counted; use fewer");
        insta::assert_snapshot!(fails(train(None, None, None)), @"train: must have exactly one of steps, epochs and tokens, got 0");
    }

    /// A fork after 10 steps of 8 rows of 8 tokens, with 64 rows a step.
    #[test]
    fn a_fork_counts_the_rows_read_before_it() {
        let position = DataPosition { step: 10, epoch: 0, row: 80, rows: 80, tokens: 640 };
        let rows = RowSequence::new(64, 8, RowOrder::default(), Some(position), 1_000);
        // 2,000 - 80 rows are 30 steps.
        assert_eq!(run_steps(&train(None, Some(2.0), None), &rows, 64, 8), Ok(40));
        // 10,000 - 640 tokens are 18.28 steps.
        assert_eq!(run_steps(&train(None, None, Some(10_000)), &rows, 64, 8), Ok(28));
        assert_eq!(run_steps(&train(Some(40), None, None), &rows, 64, 8), Ok(40));
        // Nothing is left: the caller refuses a fork at its last step.
        assert_eq!(run_steps(&train(None, Some(0.08), None), &rows, 64, 8), Ok(10));
    }
}
