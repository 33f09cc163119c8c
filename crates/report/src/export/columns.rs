//! The metrics that are exported, and their values in a line of `metrics.jsonl`.

use runner_store::MetricLine;
use runner_store::metrics::{EvalLine, TrainLine};

/// One metric.
#[derive(Clone, Copy)]
pub(super) struct Column<T> {
    /// The group in which TensorBoard shows it.
    pub(super) group: &'static str,
    /// Its key in `metrics.jsonl`.
    pub(super) name: &'static str,
    value: fn(Option<&TrainLine>, Option<&EvalLine>) -> Option<T>,
}

impl<T> Column<T> {
    const fn new(
        group: &'static str,
        name: &'static str,
        value: fn(Option<&TrainLine>, Option<&EvalLine>) -> Option<T>,
    ) -> Self {
        Self { group, name, value }
    }

    /// The metric's value in `line`, if the line has it.
    pub(super) fn value(&self, line: &MetricLine) -> Option<T> {
        match line {
            MetricLine::Train(train) => (self.value)(Some(train), None),
            MetricLine::Eval(eval) => (self.value)(None, Some(eval)),
        }
    }
}

/// Columns of whole numbers.
pub(super) const INTEGERS: [Column<u64>; 2] = [
    Column::new("train", "tokens", |train, _| Some(train?.tokens)),
    Column::new("eval", "hellaswag_n", |_, eval| eval?.hellaswag_n),
];

/// Columns of floating-point numbers.
pub(super) const FLOATS: [Column<f64>; 15] = [
    Column::new("train", "loss", |train, _| train?.loss),
    Column::new("train", "lr", |train, _| train?.lr),
    Column::new("train", "grad_norm", |train, _| train?.grad_norm),
    Column::new("train", "tokens_per_second", |train, _| train?.tokens_per_second),
    Column::new("train", "mfu", |train, _| train?.mfu),
    Column::new("time", "step_ms", |train, _| train?.step_ms),
    Column::new("time", "data_ms", |train, _| train?.data_ms),
    Column::new("time", "forward_ms", |train, _| train?.forward_ms),
    Column::new("time", "backward_ms", |train, _| train?.backward_ms),
    Column::new("time", "optimizer_ms", |train, _| train?.optimizer_ms),
    Column::new("time", "comm_ms", |train, _| train?.comm_ms),
    Column::new("eval", "val_loss", |_, eval| eval?.val_loss),
    Column::new("eval", "val_perplexity", |_, eval| eval?.val_perplexity),
    Column::new("eval", "hellaswag_acc", |_, eval| eval?.hellaswag_acc),
    Column::new("eval", "hellaswag_acc_norm", |_, eval| eval?.hellaswag_acc_norm),
];

/// A line's kind in `metrics.jsonl`.
pub(super) fn kind_of(line: &MetricLine) -> &'static str {
    match line {
        MetricLine::Train(_) => "train",
        MetricLine::Eval(_) => "eval",
    }
}

/// A number that is finite; others are exported as missing.
pub(super) fn finite(x: Option<f64>) -> Option<f64> {
    x.filter(|x| x.is_finite())
}
