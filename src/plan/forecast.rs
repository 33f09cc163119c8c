//! What a plan is predicted to take: step time, and where in it ranks wait. Not part of the plan's hash.

use serde::{Deserialize, Serialize};

use crate::plan::facts::ClusterFacts;
use crate::plan::prices::Priced;
use crate::plan::simulate::{self, Trace};
use crate::plan::types::{RankPlan, Totals};

/// Spans beyond this many are not kept: a picture of them shows nothing.
pub(crate) const MOST_SPANS: usize = 1 << 16;

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

/// The prediction for `ranks`; `None` if a device or a link that it needs has no rates.
pub(crate) fn forecast(ranks: &[RankPlan], totals: &Totals, slots: usize, cluster: &ClusterFacts) -> Option<Forecast> {
    let priced = Priced::new(ranks, cluster)?;
    let programs: Vec<_> = priced.stages.iter().map(|s| &s.rank.program).collect();
    let trace = simulate::simulate(&programs, slots, &priced)?;
    let step = trace.seconds;
    if !(step.is_finite() && step > 0.0) {
        return None;
    }
    let devices = priced.devices;
    let tokens = totals.tokens_per_step as f64 / step;
    let peak = ranks.first().and_then(|r| r.program.peak_flops);
    let run_seconds = step * totals.steps as f64;
    Some(Forecast {
        basis: priced.basis,
        step_seconds: step,
        tokens_per_second: tokens,
        tokens_per_second_per_device: tokens / devices as f64,
        mfu: peak.map(|peak| totals.flops_per_step / (peak * step)),
        run_seconds,
        devices,
        device_hours: run_seconds / 3600.0 * devices as f64,
        stages: stages(&trace, ranks),
        spans: if trace.spans.len() > MOST_SPANS { Vec::new() } else { trace.spans },
    })
}

fn stages(trace: &Trace, ranks: &[RankPlan]) -> Vec<StageForecast> {
    let mut memory = vec![0; trace.stages.len()];
    for rank in ranks {
        memory[rank.stage] = rank.memory.total().max(memory[rank.stage]);
    }
    let of = |(stage, sums): (usize, &simulate::Sums)| StageForecast {
        stage,
        compute_seconds: sums.compute,
        bubble: sums.waiting / trace.seconds,
        communication_seconds: sums.communication,
        memory_bytes: memory[stage],
    };
    trace.stages.iter().enumerate().map(of).collect()
}
