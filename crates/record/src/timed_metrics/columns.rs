//! The metrics that other programs take, and their values in a line of `metrics.jsonl`.

use serde_json::Value;

use crate::metrics::MetricLine;
use runner_spec::format::json_value;

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// The group in which TensorBoard shows it.
    pub group: &'static str,
    /// Its key in `metrics.jsonl`, or `perplexity`, which follows from the loss, or `cumulative_tokens`.
    pub name: &'static str,
}

/// The values of a line of `metrics.jsonl` by their keys.
#[derive(Debug)]
pub struct MetricValues(Value);

impl MetricValues {
    /// The values of `line`. The model has seen `cumulative_tokens` after its step, if they are known.
    pub fn new(line: &MetricLine, cumulative_tokens: Option<u64>) -> Self {
        let mut values = json_value(line);
        values["cumulative_tokens"] = json_value(&cumulative_tokens);
        if let MetricLine::Train(train) = line {
            values["perplexity"] = json_value(&train.perplexity());
        }
        Self(values)
    }

    /// `train` or `eval`.
    pub fn kind(&self) -> &str {
        self.0["kind"].as_str().unwrap_or_default()
    }

    pub fn integer(&self, column: &Column) -> Option<u64> {
        self.0[column.name].as_u64()
    }

    pub fn float(&self, column: &Column) -> Option<f64> {
        self.0[column.name].as_f64()
    }

    /// The tag (such as `train/loss`) and value of each number that is present. An evaluation does not repeat the tokens of its step.
    pub fn scalars(&self) -> Vec<(String, f64)> {
        let is_of_kind = |column: &&Column| (column.group == "eval") == (self.kind() == "eval");
        let columns = INTEGERS.iter().chain(&FLOATS).filter(is_of_kind);
        columns.filter_map(|c| Some((format!("{}/{}", c.group, c.name), self.float(c)?))).collect()
    }
}

const fn column(group: &'static str, name: &'static str) -> Column {
    Column { group, name }
}

/// Columns of whole numbers.
pub const INTEGERS: [Column; 4] = [
    column("train", "tokens"),
    column("train", "cumulative_tokens"),
    column("eval", "val_tokens"),
    column("eval", "hellaswag_n"),
];

/// Columns of floating-point numbers.
pub const FLOATS: [Column; 20] = [
    column("train", "epoch"),
    column("train", "loss"),
    column("train", "perplexity"),
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
    column("eval", "val_loss_se"),
    column("eval", "val_perplexity"),
    column("eval", "val_bits_per_byte"),
    column("eval", "hellaswag_acc"),
    column("eval", "hellaswag_acc_norm"),
    column("eval", "hellaswag_acc_norm_chars"),
];
