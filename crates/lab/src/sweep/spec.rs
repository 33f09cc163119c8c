//! A sweep as its file describes it, checked.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::random::{Distribution, RandomDraws};

/// The JSON Schema of the sweep file (draft 7), for editors. The module `read` decides what is legal; a test compares its keys with the
/// schema.
pub const SCHEMA: &str = include_str!("../../../../schemas/sweep.schema.json");

/// The largest number of points of a sweep, before exclusion.
pub const MAX_POINTS: usize = 10_000;

/// A sweep, as its file describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepSpec {
    /// The key `name`, else the name of the file without its extension.
    pub name: String,
    pub base: SweepBase,
    /// Variables of the template that are the same for all points.
    pub vars: Map<String, Value>,
    /// `key.path=value` for every point, in the form of `--set`.
    pub set: Vec<String>,
    /// The dimensions, in the order of the file; the first one varies slowest.
    pub axes: Vec<Dimension>,
    pub exclude: Vec<ExcludeExpression>,
    pub objective: Objective,
    pub early_stop: Option<AshaSettings>,
    /// The number of concurrent runs, at least 1.
    pub parallel: usize,
    /// How often a failed point is retried.
    pub retries: u32,
    /// The file as given.
    pub text: String,
    pub path: PathBuf,
}

impl SweepSpec {
    /// The names of everything that varies, in the order of the file.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.axes.iter().flat_map(Dimension::names).collect()
    }
}

/// The file that points are made from; its path is joined to the folder of the sweep file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SweepBase {
    /// The names of the axes are variables of this template.
    Template(PathBuf),
    /// The names of the axes are key paths of this experiment.
    Experiment(PathBuf),
}

impl SweepBase {
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Template(path) | Self::Experiment(path) => path,
        }
    }
}

/// One factor of the product that the points are.
#[derive(Debug, Clone, PartialEq)]
pub enum Dimension {
    /// An axis of `grid`.
    Grid(ListAxis),
    /// The axes of `zip`: equally long, and varied together.
    Zip(Vec<ListAxis>),
    /// The draws of `random`, the same for every point of the rest.
    Random(RandomDraws),
}

impl Dimension {
    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Grid(axis) => axis.values.len(),
            Self::Zip(axes) => axes.first().map_or(0, |a| a.values.len()),
            Self::Random(random) => random.samples,
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The names of everything that varies in the dimension.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        match self {
            Self::Grid(axis) => vec![&axis.name],
            Self::Zip(axes) => axes.iter().map(|a| a.name.as_str()).collect(),
            Self::Random(random) => random.space.iter().map(|(name, _)| name.as_str()).collect(),
        }
    }

    /// True if a value of `name` is a list.
    pub(super) fn has_list(&self, name: &str) -> bool {
        let in_axis = |axis: &ListAxis| axis.name == name && axis.values.iter().any(Value::is_array);
        match self {
            Self::Grid(axis) => in_axis(axis),
            Self::Zip(axes) => axes.iter().any(in_axis),
            Self::Random(random) => random.space.iter().any(|(drawn, draw)| {
                drawn == name && matches!(draw, Distribution::Choice(values) if values.iter().any(Value::is_array))
            }),
        }
    }
}

/// A variable or key path with its values, of which there is at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct ListAxis {
    pub name: String,
    pub values: Vec<Value>,
}

/// An expression that leaves out the points for which it is true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExcludeExpression {
    pub text: String,
    /// The place in the file: line and column from 1, and the number of characters.
    pub line: usize,
    pub column: usize,
    pub length: usize,
}

/// The objective that points are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Objective {
    pub metric: ObjectiveMetric,
    pub goal: Goal,
    pub at: MeasurementChoice,
}

runner_store::named_enum! {
    /// The metric that points are compared by.
    pub enum ObjectiveMetric {
        ValLoss = "val_loss",
        TrainLoss = "train_loss",
        ValPerplexity = "val_perplexity",
        HellaswagAcc = "hellaswag_acc",
        HellaswagAccNorm = "hellaswag_acc_norm",
        TokensPerSecond = "tokens_per_second",
    }
}

impl ObjectiveMetric {
    /// The goal unless the file names one.
    #[must_use]
    pub fn goal(self) -> Goal {
        match self {
            Self::ValLoss | Self::TrainLoss | Self::ValPerplexity => Goal::Minimize,
            Self::HellaswagAcc | Self::HellaswagAccNorm | Self::TokensPerSecond => Goal::Maximize,
        }
    }
}

impl Display for ObjectiveMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

runner_store::named_enum! {
    pub enum Goal {
        Minimize = "minimize",
        Maximize = "maximize",
    }
}

impl Goal {
    /// Orders the better value first. NaN is worse than any number, and equal to itself.
    #[must_use]
    pub fn order(self, a: f64, b: f64) -> std::cmp::Ordering {
        match (a.is_nan(), b.is_nan()) {
            (true, true) => std::cmp::Ordering::Equal,
            (true, false) => std::cmp::Ordering::Greater,
            (false, true) => std::cmp::Ordering::Less,
            (false, false) => {
                let order = a.partial_cmp(&b).unwrap_or(std::cmp::Ordering::Equal);
                if self == Self::Minimize { order } else { order.reverse() }
            }
        }
    }
}

runner_store::named_enum! {
    /// The measurement of a run that counts.
    pub enum MeasurementChoice {
        /// The measurement after the last step.
        Last = "last",
        /// The best measurement.
        Best = "best",
    }
}

/// Asynchronous successive halving: a point is judged after `min_steps` steps, after `min_steps`·`reduction`, and so on, and
/// the best of `reduction` goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AshaSettings {
    /// At least 1.
    pub min_steps: u64,
    /// At least 2.
    pub reduction: u64,
}
