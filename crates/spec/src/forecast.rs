//! What a plan is predicted to take: the types. `runner_plan` computes them.

use serde::{Deserialize, Serialize};

/// Spans beyond this many are not kept: a picture of them shows nothing.
pub const MOST_SPANS: usize = 1 << 16;

/// A prediction. Times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// What it rests on.
    pub basis: Basis,
    pub step_seconds: f64,
    pub tokens_per_second: f64,
    pub tokens_per_second_per_device: f64,
    /// Under the plan's convention; `None` where a device's peak is not known.
    pub mfu: Option<f64>,
    /// All steps, without evaluations, samples and checkpoints.
    pub run_seconds: f64,
    pub devices: usize,
    pub device_hours: f64,
    pub stages: Vec<StageForecast>,
    /// What each stage does when, in one step. Empty for steps of very many parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<Span>,
}

/// Where the rates come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// `runner calibrate` on this machine.
    Measured,
    /// Data sheets and assumed efficiencies.
    Assumed,
}

/// One stage of the pipeline, all of whose replicas do the same.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StageForecast {
    pub stage: usize,
    /// Forwards, backwards and the update.
    pub compute_seconds: f64,
    /// Share of the step in which it waits for other stages.
    pub bubble: f64,
    /// Waiting for bytes under way: messages, and sums over replicas that the backward does not hide.
    pub communication_seconds: f64,
    /// The most that one of its ranks needs, of the plan's estimate.
    pub memory_bytes: u64,
}

/// One thing a stage does, in seconds from the beginning of the step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Span {
    pub stage: usize,
    pub start: f64,
    pub end: f64,
    pub what: Activity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mb: Option<usize>,
    #[serde(default)]
    pub chunk: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    Forward,
    Backward,
    /// The input's gradient alone.
    Input,
    /// The weights' gradients alone.
    Weight,
    /// Norm, clipping, update.
    Update,
    /// A sum over replicas beside the computation.
    Reduce,
    /// A collective that all members wait for.
    Collective,
}
