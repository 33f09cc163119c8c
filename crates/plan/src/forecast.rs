//! The predicted time of a plan's step, and the part of it in which ranks wait. It is not part of the plan's hash.

pub(crate) mod block_time;
pub mod cost;
mod interpolation;
pub(crate) mod simulate;
pub(crate) mod slow_sizes;
pub(crate) mod step_costs;
pub mod timeline;
pub(crate) mod wire;

use crate::forecast::step_costs::PlanCosts;
use runner_spec::cluster::ClusterFacts;
use runner_spec::forecast::{Forecast, MAX_SPANS, StageForecast};
use runner_spec::plan::{RankPlan, Totals};
use simulate::SimulatedStep;

/// The prediction for `ranks`; `None` if a device or a link that it needs has no rates.
pub(crate) fn forecast(ranks: &[RankPlan], totals: &Totals, slots: usize, cluster: &ClusterFacts) -> Option<Forecast> {
    let costs = PlanCosts::of_ranks(ranks, cluster)?;
    let programs: Vec<_> = costs.stages.iter().map(|s| s.program).collect();
    let trace = simulate::simulate(&programs, slots, &costs)?;
    let step = trace.seconds;
    if !(step.is_finite() && step > 0.0) {
        return None;
    }
    let devices = costs.devices;
    let tokens = totals.pace.tokens_per_step as f64 / step;
    let run_seconds = totals.pace.seconds_after(totals.steps, step)?;
    Some(Forecast {
        basis: costs.basis,
        step_seconds: step,
        tokens_per_second: tokens,
        tokens_per_second_per_device: tokens / devices as f64,
        mfu: ranks.first().and_then(|rank| rank.program.mfu(step)),
        run_seconds,
        devices,
        device_hours: run_seconds / 3600.0 * devices as f64,
        stages: stages(&trace, ranks),
        spans: if trace.spans.len() > MAX_SPANS { Vec::new() } else { trace.spans },
    })
}

/// The predicted time of a step of `ranks`; `None` if it is unknown.
pub(crate) fn step_seconds(ranks: &[RankPlan], slots: usize, cluster: &ClusterFacts) -> Option<f64> {
    let costs = PlanCosts::of_ranks(ranks, cluster)?;
    let programs: Vec<_> = costs.stages.iter().map(|s| s.program).collect();
    Some(simulate::simulate(&programs, slots, &costs)?.seconds)
}

fn stages(trace: &SimulatedStep, ranks: &[RankPlan]) -> Vec<StageForecast> {
    let mut memory = vec![0; trace.stages.len()];
    for rank in ranks {
        memory[rank.stage] = rank.memory.total().max(memory[rank.stage]);
    }
    let forecast_of_stage = |(stage, seconds): (usize, &simulate::StageSeconds)| StageForecast {
        stage,
        compute_seconds: seconds.compute,
        bubble: seconds.waiting / trace.seconds,
        communication_seconds: seconds.communication,
        memory_bytes: memory[stage],
    };
    trace.stages.iter().enumerate().map(forecast_of_stage).collect()
}
