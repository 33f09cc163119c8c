//! The metrics that other programs take, and their values in a line of `metrics.jsonl`.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::Value;

use crate::metrics::MetricLine;
use runner_spec::event::Evaluation;
use runner_spec::format::json_value;
use runner_spec::measure::{Measure, MeasureForm};

/// One metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// The group in which TensorBoard shows it.
    pub group: &'static str,
    /// Its key in `metrics.jsonl`, or `perplexity`, which follows from the loss, or `cumulative_tokens`.
    pub name: Cow<'static, str>,
    /// True if its numbers are whole.
    pub is_integer: bool,
}

/// The values of a line of `metrics.jsonl` by their keys.
#[derive(Debug)]
pub struct MetricValues {
    values: Value,
    /// The tasks that the line scores.
    tasks: BTreeSet<String>,
}

impl MetricValues {
    /// The values of `line`. The model has seen `cumulative_tokens` after its step, if they are known.
    pub fn new(line: &MetricLine, cumulative_tokens: Option<u64>) -> Self {
        let mut values = match line {
            MetricLine::Eval(Evaluation { step, measured, .. }) => {
                json_value(&MetricLine::Eval(Evaluation { measured: measured.with_errors(), ..Evaluation::new(*step) }))
            }
            MetricLine::Train(_) => json_value(line),
        };
        values["cumulative_tokens"] = json_value(&cumulative_tokens);
        let tasks = match line {
            MetricLine::Train(train) => {
                values["perplexity"] = json_value(&train.perplexity());
                BTreeSet::new()
            }
            MetricLine::Eval(evaluation) => task_names(evaluation),
        };
        Self { values, tasks }
    }

    /// `train` or `eval`.
    pub fn kind(&self) -> &str {
        self.values["kind"].as_str().unwrap_or_default()
    }

    pub fn integer(&self, column: &Column) -> Option<u64> {
        self.values[&*column.name].as_u64()
    }

    pub fn float(&self, column: &Column) -> Option<f64> {
        self.values[&*column.name].as_f64()
    }

    /// The tag (such as `train/loss`) and value of each number that is present. An evaluation does not repeat the tokens of its step.
    pub fn scalars(&self) -> Vec<(String, f64)> {
        let is_of_kind = |column: &Column| (column.group == "eval") == (self.kind() == "eval");
        let columns = columns(&self.tasks).into_iter().filter(is_of_kind);
        columns.filter_map(|c| Some((format!("{}/{}", c.group, c.name), self.float(&c)?))).collect()
    }
}

/// The columns of training steps, without their groups: whole numbers, then others.
const TRAINING: [(&str, &str, bool); 15] = [
    ("train", "tokens", true),
    ("train", "cumulative_tokens", true),
    ("train", "epoch", false),
    ("train", "loss", false),
    ("train", "perplexity", false),
    ("train", "lr", false),
    ("train", "grad_norm", false),
    ("train", "tokens_per_second", false),
    ("train", "mfu", false),
    ("time", "step_ms", false),
    ("time", "data_ms", false),
    ("time", "forward_ms", false),
    ("time", "backward_ms", false),
    ("time", "optimizer_ms", false),
    ("time", "comm_ms", false),
];

/// The columns of runs that score these tasks: those of whole numbers first.
#[must_use]
pub fn columns(tasks: &BTreeSet<String>) -> Vec<Column> {
    let training = TRAINING.map(|(group, name, is_integer)| Column { group, name: name.into(), is_integer });
    let of_tasks = tasks.iter().flat_map(|task| Measure::all_of_task(task));
    let evaluated = Measure::all_fixed().filter(Measure::is_evaluated).chain(of_tasks).map(|measure| Column {
        group: "eval",
        name: measure.key(),
        is_integer: measure.form() == MeasureForm::Count,
    });
    let mut columns: Vec<Column> = training.into_iter().chain(evaluated).collect();
    columns.sort_by_key(|column| !column.is_integer);
    columns
}

/// The tasks that `evaluation` scores.
pub(super) fn task_names(evaluation: &Evaluation) -> BTreeSet<String> {
    evaluation.measured.iter().filter_map(|(measure, _)| measure.task().map(str::to_owned)).collect()
}
