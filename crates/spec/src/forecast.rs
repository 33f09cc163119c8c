//! The predicted time of a plan. `runner_plan` computes it.

use serde::{Deserialize, Serialize};

/// The most spans of a forecast. A picture of more shows nothing, so they are left out.
pub const MAX_SPANS: usize = 1 << 16;

/// A prediction. Times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// The source of the speeds.
    pub basis: ForecastBasis,
    pub step_seconds: f64,
    pub tokens_per_second: f64,
    pub tokens_per_second_per_device: f64,
    /// Under the plan's convention; `None` if a device's peak is unknown.
    pub mfu: Option<f64>,
    /// All steps, without evaluations, samples and checkpoints.
    pub run_seconds: f64,
    pub devices: usize,
    pub device_hours: f64,
    pub stages: Vec<StageForecast>,
    /// The activity of each stage during one step. Empty if there are more than [`MAX_SPANS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<ForecastSpan>,
}

/// The source of the speeds that a forecast is computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForecastBasis {
    /// `runner calibrate` on this machine.
    Measured,
    /// `runner calibrate --force` on this machine, while other programs computed.
    Disturbed,
    /// Data sheets and assumed efficiencies.
    Assumed,
}

/// The forecast for one stage of the pipeline. All of its replicas do the same.
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

/// One activity of a stage. Times are seconds since the beginning of the step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ForecastSpan {
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
