//! The length of a run, as its experiment gives it, in optimizer steps.

use crate::error::{PlanError, Result, refuse};
use crate::stages::Stages;
use runner_spec::experiment::{Train, TrainLength};
use runner_spec::plan::first_step;
use runner_spec::program::RowSequence;

/// A budget that is this share short of a whole step still pays for it: FLOPs are sums of f64.
const ROUNDING: f64 = 1e-9;

/// The sizes that decide how many steps a length is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepSizes {
    /// Rows of a step.
    pub(crate) sequences: usize,
    /// Tokens of a row.
    pub(crate) length: usize,
    /// Parameters of the model.
    pub(crate) parameters: u64,
    /// FLOPs of a step, as counted for MFU.
    pub(crate) flops: f64,
}

/// The steps of the run, rounded down, including those that a fork inherits. A step reads rows in the order of `rows`. Tokens count
/// positions, padding included.
///
/// # Errors
/// If that makes no step, or if not exactly one length is given.
pub(crate) fn run_steps(train: &Train, rows: &RowSequence, sizes: StepSizes) -> Result<u64> {
    let StepSizes { sequences, length, parameters, flops: flops_per_step } = sizes;
    let Some(per_step) = (sequences as u64).checked_mul(length as u64) else {
        refuse!("batch.sequences", "{sequences} sequences of {length} tokens are more than can be counted")
    };
    let positive = |key: &'static str, value: f64| {
        let is_positive = value.is_finite() && value > 0.0;
        if is_positive { Ok(value) } else { Err(PlanError::value(key, format!("{value} is not a positive number"))) }
    };
    let tokens_a_step = format!("({sequences} sequences · {length} tokens)");
    // Tokens before a fork count too, so steps are counted in tokens.
    let whole_steps = |steps: f64| rows.steps_of_tokens((steps * per_step as f64) as u64);
    // Rounded up in the third digit, so that the advice is enough.
    let three_digits = |least: f64| ((least * 1e3).ceil() / 1e3).to_string();
    // The key, the steps with a fraction and whole, the arithmetic, and the least value that makes a step.
    let (key, exact, steps, arithmetic, least) = match train.length() {
        Ok(TrainLength::Steps(0)) => refuse!("train.steps", "must be at least 1, got 0"),
        Ok(TrainLength::Steps(steps)) => ("train.steps", steps as f64, steps, String::new(), String::new()),
        Ok(TrainLength::Epochs(epochs)) => {
            let exact = rows.steps_of_epochs(positive("train.epochs", epochs)?);
            let rows = rows.epoch_rows();
            let arithmetic = format!("{epochs} · {rows} rows / {sequences} sequences a step");
            ("train.epochs", exact, exact.floor() as u64, arithmetic, three_digits(sequences as f64 / rows as f64))
        }
        Ok(TrainLength::Tokens(tokens)) => {
            let (exact, steps) = (tokens as f64 / per_step as f64, rows.steps_of_tokens(tokens));
            ("train.tokens", exact, steps, format!("{tokens} / {tokens_a_step}"), per_step.to_string())
        }
        Ok(TrainLength::Flops(flops)) => {
            let exact = positive("train.flops", flops)? / flops_per_step * (1.0 + ROUNDING);
            let arithmetic = format!("{flops:e} / {flops_per_step:.3e} FLOPs a step");
            ("train.flops", exact, whole_steps(exact), arithmetic, rounded_up(flops_per_step))
        }
        Ok(TrainLength::TokensPerParameter(ratio)) => {
            let one = per_step as f64 / parameters as f64;
            let exact = positive("train.tokens_per_parameter", ratio)? / one * (1.0 + ROUNDING);
            let arithmetic = format!("{ratio} · {parameters} parameters / {tokens_a_step}");
            ("train.tokens_per_parameter", exact, whole_steps(exact), arithmetic, three_digits(one))
        }
        Err(given) => refuse!(
            "train",
            "must have exactly one of steps, epochs, tokens, flops and tokens_per_parameter, got {given}"
        ),
    };
    if exact < 1.0 {
        refuse!(key, "{arithmetic} = {exact:.3} steps, but a run needs at least 1; use {key}: {least} or more");
    }
    // Positions in the data order and tokens seen are u64.
    if steps.checked_mul(per_step).is_none_or(|tokens| tokens > i64::MAX as u64) {
        refuse!("train", "{steps} steps of {sequences}·{length} tokens are more than can be counted; use fewer");
    }
    Ok(steps)
}

/// The most steps that a budget may pay for in a run with stages.
const MAX_STEPS: u64 = 1 << 40;

/// [`run_steps`] of a run with several stages and a model of `parameters`: steps that do not exceed the length, while one more step does. If
/// stages end at shares of the run, more steps can have fewer tokens, and then a few more may fit as well.
///
/// # Errors
/// If that makes no step, or if not exactly one length is given.
pub(crate) fn steps_of_stages(train: &Train, stages: &Stages, parameters: u64) -> Result<u64> {
    let position = |steps| stages.row_sequence(steps).position_after(steps);
    let tokens = |steps| position(steps).tokens as f64;
    let (key, limit, amount): (_, f64, &dyn Fn(u64) -> f64) = match train.length() {
        Ok(TrainLength::Steps(0)) => refuse!("train.steps", "must be at least 1, got 0"),
        Ok(TrainLength::Steps(steps)) if position(steps).tokens > i64::MAX as u64 => {
            refuse!("train", "{steps} steps have more tokens than can be counted; use fewer")
        }
        Ok(TrainLength::Steps(steps)) => return Ok(steps),
        Ok(TrainLength::Epochs(epochs)) => {
            ("train.epochs", epochs * (1.0 + ROUNDING), &|steps| stages.row_sequence(steps).epochs_after(steps))
        }
        Ok(TrainLength::Tokens(all)) => ("train.tokens", all as f64, &tokens),
        Ok(TrainLength::Flops(flops)) => ("train.flops", flops * (1.0 + ROUNDING), &|steps| stages.flops(steps)),
        Ok(TrainLength::TokensPerParameter(ratio)) => {
            ("train.tokens_per_parameter", ratio * parameters as f64 * (1.0 + ROUNDING), &tokens)
        }
        Err(given) => refuse!(
            "train",
            "must have exactly one of steps, epochs, tokens, flops and tokens_per_parameter, got {given}"
        ),
    };
    let exceeds = |steps: u64| amount(steps) > limit;
    let inherited = stages.inherited_steps();
    if inherited == 0 && exceeds(1) {
        let show = |value: f64| match key {
            "train.epochs" => format!("{value:.3} epochs"),
            "train.flops" => format!("{value:.3e} FLOPs"),
            _ => format!("{value:.0} tokens"),
        };
        refuse!(
            key,
            "the first step takes {}, more than {}; a run needs at least one step",
            show(amount(1)),
            show(limit)
        );
    }
    if !exceeds(MAX_STEPS) {
        refuse!(key, "it is more than {MAX_STEPS} steps; use less");
    }
    // The caller refuses a fork that has only inherited steps.
    Ok(first_step(MAX_STEPS, |steps| steps > inherited && exceeds(steps)) - 1)
}

/// `value` with four digits, rounded up, so that a budget of it is enough.
fn rounded_up(value: f64) -> String {
    let scale = 10f64.powi(value.log10().floor() as i32 - 3);
    format!("{:.3e}", (value / scale).ceil() * scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_spec::program::{DataPosition, RowOrder};

    fn rows(rows: u64) -> RowSequence {
        RowSequence::new(64, 8, RowOrder::default(), None, rows)
    }

    fn train(steps: Option<u64>, epochs: Option<f64>, tokens: Option<u64>) -> Train {
        Train { steps, epochs, tokens, ..Train::default() }
    }

    const SIZES: StepSizes = StepSizes { sequences: 64, length: 8, parameters: 1000, flops: 3e6 };

    #[test]
    fn each_way_of_stating_a_length_gives_the_same_steps() {
        assert_eq!(run_steps(&train(Some(7), None, None), &rows(1), SIZES), Ok(7));
        // 1,000·2.5 / 64 = 39.06.
        assert_eq!(run_steps(&train(None, Some(2.5), None), &rows(1_000), SIZES), Ok(39));
        // 10,000 / (64·8) = 19.5.
        assert_eq!(run_steps(&train(None, None, Some(10_000)), &rows(1_000), SIZES), Ok(19));
        assert_eq!(run_steps(&train(None, None, Some(512)), &rows(1_000), SIZES), Ok(1));
    }

    #[test]
    fn budgets_are_rounded_down_to_whole_steps() {
        let steps = |train| run_steps(&train, &rows(1_000), SIZES);
        let flops = |flops| steps(Train { flops: Some(flops), ..Train::default() });
        assert_eq!([flops(3e6), flops(5.9e6), flops(6e6)], [Ok(1), Ok(1), Ok(2)]);
        // A third of a FLOP less than 3 steps is a difference of rounding.
        assert_eq!([flops(9e6 - 1e-3), flops(9e6 - 1.0)], [Ok(3), Ok(2)]);
        let ratio = |ratio| steps(Train { tokens_per_parameter: Some(ratio), ..Train::default() });
        // 1,000·20 / (64·8) = 39.06.
        assert_eq!([ratio(20.0), ratio(0.512)], [Ok(39), Ok(1)]);
        let fails = |result: Result<u64>| result.expect_err("no run").to_string();
        insta::assert_snapshot!(fails(flops(1e6)), @"train.flops: 1e6 / 3.000e6 FLOPs a step = 0.333 steps, but a run needs at least 1; use train.flops: 3.000e6 or more");
        insta::assert_snapshot!(fails(ratio(0.1)), @"train.tokens_per_parameter: 0.1 · 1000 parameters / (64 sequences · 8 tokens) = 0.195 steps, but a run needs at least 1; use train.tokens_per_parameter: 0.512 or more");
        insta::assert_snapshot!(fails(flops(1e30)), @"train: 36028797018963967 steps of 64·8 tokens are more than can be counted; use fewer");
        insta::assert_snapshot!(fails(flops(0.0)), @"train.flops: 0 is not a positive number");
    }

    #[test]
    fn lengths_that_are_too_short_or_too_long_are_refused() {
        let fails = |train| run_steps(&train, &rows(1_000), SIZES).expect_err("no run").to_string();
        insta::assert_snapshot!(fails(train(None, Some(0.05), None)), @"train.epochs: 0.05 · 1000 rows / 64 sequences a step = 0.781 steps, but a run needs at least 1; use train.epochs: 0.064 or more");
        insta::assert_snapshot!(fails(train(None, None, Some(500))), @"train.tokens: 500 / (64 sequences · 8 tokens) = 0.977 steps, but a run needs at least 1; use train.tokens: 512 or more");
        insta::assert_snapshot!(fails(train(Some(u64::MAX), None, None)), @"train: 18446744073709551615 steps of 64·8 tokens are more than can be counted; use fewer");
        insta::assert_snapshot!(fails(train(None, Some(f64::NAN), None)), @"train.epochs: NaN is not a positive number");
        insta::assert_snapshot!(fails(train(None, Some(1e300), None)), @"train: 18446744073709551615 steps of 64·8 tokens are more than can be counted; use fewer");
        insta::assert_snapshot!(fails(train(None, None, None)), @"train: must have exactly one of steps, epochs, tokens, flops and tokens_per_parameter, got 0");
    }

    /// A fork after 10 steps of 8 rows of 8 tokens, with 64 rows a step.
    #[test]
    fn a_fork_counts_the_rows_read_before_it() {
        let position = DataPosition { step: 10, epoch: 0, row: 80, rows: 80, tokens: 640 };
        let rows = RowSequence::new(64, 8, RowOrder::default(), Some(position), 1_000);
        // 2,000 - 80 rows are 30 steps.
        assert_eq!(run_steps(&train(None, Some(2.0), None), &rows, SIZES), Ok(40));
        // 10,000 - 640 tokens are 18.28 steps.
        assert_eq!(run_steps(&train(None, None, Some(10_000)), &rows, SIZES), Ok(28));
        assert_eq!(run_steps(&train(Some(40), None, None), &rows, SIZES), Ok(40));
        // Nothing is left: the caller refuses a fork at its last step.
        assert_eq!(run_steps(&train(None, Some(0.08), None), &rows, SIZES), Ok(10));
    }
}
