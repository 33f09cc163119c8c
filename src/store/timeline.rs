//! `timeline.json`: when each rank did what in one step that was watched, to be put beside the plan's timeline.

use serde::{Deserialize, Serialize};

use crate::plan::forecast::Activity;

/// Version of the file.
pub const FORMAT: u32 = 1;

/// The whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredStep {
    pub format: u32,
    /// Which step it was, counting from 1.
    pub step: u64,
    /// The latest end of a span, in seconds.
    pub end: f64,
    /// By rank, and in each rank in the order of time.
    pub spans: Vec<MeasuredSpan>,
}

/// One thing a rank did, in seconds from the moment the first rank began the step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeasuredSpan {
    pub rank: usize,
    /// `None`: sending and receiving, which is waiting for the most part.
    pub what: Option<Activity>,
    pub mb: Option<usize>,
    pub chunk: usize,
    pub start: f64,
    pub end: f64,
}
