//! The metrics that are exported, and their values in a line of `metrics.jsonl`.

use serde_json::Value;

use runner_spec::format::json_value;
use runner_store::MetricLine;

/// One metric.
pub(super) struct Column {
    /// The group in which TensorBoard shows it.
    pub(super) group: &'static str,
    /// Its key in `metrics.jsonl`.
    pub(super) name: &'static str,
}

/// The values of a line of `metrics.jsonl` by their keys.
#[derive(Debug)]
pub(super) struct MetricValues(Value);

impl MetricValues {
    pub(super) fn new(line: &MetricLine) -> Self {
        Self(json_value(line))
    }

    /// `train` or `eval`.
    pub(super) fn kind(&self) -> &str {
        self.0["kind"].as_str().unwrap_or_default()
    }

    pub(super) fn integer(&self, column: &Column) -> Option<u64> {
        self.0[column.name].as_u64()
    }

    pub(super) fn float(&self, column: &Column) -> Option<f64> {
        self.0[column.name].as_f64()
    }
}

const fn column(group: &'static str, name: &'static str) -> Column {
    Column { group, name }
}

/// Columns of whole numbers.
pub(super) const INTEGERS: [Column; 2] = [column("train", "tokens"), column("eval", "hellaswag_n")];

/// Columns of floating-point numbers.
pub(super) const FLOATS: [Column; 16] = [
    column("train", "loss"),
    column("train", "lr"),
    column("train", "grad_norm"),
    column("train", "tokens_per_second"),
    column("train", "mfu"),
    column("time", "step_ms"),
    column("time", "data_ms"),
    column("time", "forward_ms"),
    column("time", "backward_ms"),
    column("time", "optimizer_ms"),
    column("time", "comm_ms"),
    column("eval", "val_loss"),
    column("eval", "val_perplexity"),
    column("eval", "val_bits_per_byte"),
    column("eval", "hellaswag_acc"),
    column("eval", "hellaswag_acc_norm"),
];
