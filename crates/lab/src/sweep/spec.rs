//! What a sweep file says, once read and found right. Reading is `read`'s, the points are `expand`'s.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::random::{Distribution, RandomDraws};

/// JSON Schema of the sweep file (draft 7), for editors. `read` is what decides; a test holds the two together.
pub const SCHEMA: &str = include_str!("../../../../schemas/sweep.schema.json");

/// The most points that a sweep may have, before exclusion.
pub const MAX_POINTS: usize = 10_000;

/// A sweep, as its file describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepSpec {
    /// `name`, else the name of the file without its ending.
    pub name: String,
    pub base: SweepBase,
    /// Variables that every point gets; of a template only.
    pub vars: Map<String, Value>,
    /// `key.path=value` for every point, as `--set` takes them.
    pub set: Vec<String>,
    /// What varies, in the order of the file; the first varies slowest.
    pub axes: Vec<Dimension>,
    pub exclude: Vec<ExcludeExpression>,
    pub objective: Objective,
    pub early_stop: Option<AshaSettings>,
    /// Runs at once, at least 1.
    pub parallel: usize,
    /// How often a failed point is tried again.
    pub retries: u32,
    /// The file as given.
    pub text: String,
    pub path: PathBuf,
}

impl SweepSpec {
    /// Names of all that varies, in the order of the file.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.axes.iter().flat_map(Dimension::names).collect()
    }
}

/// What the points are made of; the path is joined to the sweep file's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SweepBase {
    /// Names of axes are variables of this template.
    Template(PathBuf),
    /// Names of axes are key paths of this experiment.
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
    /// The axes of `zip`, of equal length, which go together.
    Zip(Vec<ListAxis>),
    /// The draws of `random`, the same for every point of the rest.
    Random(RandomDraws),
}

impl Dimension {
    /// How many values it has.
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

    /// Names of what varies in it.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        match self {
            Self::Grid(axis) => vec![&axis.name],
            Self::Zip(axes) => axes.iter().map(|a| a.name.as_str()).collect(),
            Self::Random(random) => random.space.iter().map(|(name, _)| name.as_str()).collect(),
        }
    }

    /// Whether a value of what it calls `name` is a list.
    pub(super) fn has_list(&self, name: &str) -> bool {
        let in_axis = |axis: &ListAxis| axis.name == name && axis.values.iter().any(Value::is_array);
        match self {
            Self::Grid(axis) => in_axis(axis),
            Self::Zip(axes) => axes.iter().any(in_axis),
            Self::Random(random) => random.space.iter().any(|(of, draw)| {
                of == name && matches!(draw, Distribution::Choice(values) if values.iter().any(Value::is_array))
            }),
        }
    }
}

/// A variable or key path, and the values that it takes, at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct ListAxis {
    pub name: String,
    pub values: Vec<Value>,
}

/// An expression; points for which it is true are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExcludeExpression {
    pub text: String,
    /// Where it stands in the file: line and column from 1, and characters in that line.
    pub line: usize,
    pub column: usize,
    pub length: usize,
}

/// What the points are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Objective {
    pub metric: ObjectiveMetric,
    pub goal: Goal,
    pub at: MeasurementChoice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectiveMetric {
    ValLoss,
    TrainLoss,
    ValPerplexity,
    HellaswagAcc,
    HellaswagAccNorm,
    TokensPerSecond,
}

impl ObjectiveMetric {
    pub const ALL: [Self; 6] = [
        Self::ValLoss,
        Self::TrainLoss,
        Self::ValPerplexity,
        Self::HellaswagAcc,
        Self::HellaswagAccNorm,
        Self::TokensPerSecond,
    ];

    /// As the file has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ValLoss => "val_loss",
            Self::TrainLoss => "train_loss",
            Self::ValPerplexity => "val_perplexity",
            Self::HellaswagAcc => "hellaswag_acc",
            Self::HellaswagAccNorm => "hellaswag_acc_norm",
            Self::TokensPerSecond => "tokens_per_second",
        }
    }

    /// The goal where the file names none.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    Minimize,
    Maximize,
}

impl Goal {
    pub const ALL: [Self; 2] = [Self::Minimize, Self::Maximize];

    /// As the file has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Minimize => "minimize",
            Self::Maximize => "maximize",
        }
    }

    /// The better one first; NaN is worse than any number, and equal to itself.
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

/// Which of a run's measurements counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MeasurementChoice {
    /// The one after the last step.
    Last,
    /// The best one.
    Best,
}

impl MeasurementChoice {
    pub const ALL: [Self; 2] = [Self::Last, Self::Best];

    /// As the file has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Best => "best",
        }
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
