//! Memory by category, planned beside measured, rank by rank.

use serde::Serialize;

use runner_spec::event::WatchedMemory as MeasuredMemory;
use runner_spec::plan::Plan;
use runner_spec::plan::{MemoryEstimate, RankPlan};
use runner_store::summary::Summary;

/// Ranks that are shown.
const MOST_RANKS: usize = 64;

/// All of a run's.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Memory {
    pub ranks: Vec<RankMemory>,
    pub ranks_left_out: usize,
}

/// One rank, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankMemory {
    pub rank: usize,
    pub stage: usize,
    pub replica: usize,
    pub device: String,
    pub planned: Categories,
    /// The most that was resident; `None` if it was not measured (yet), or if the rank is a thread of a process.
    pub peak_rss: Option<u64>,
    /// What it held in the step that was watched.
    pub measured: Option<MeasuredMemory>,
    /// By how much that is above what was planned of tensors, as a share of it.
    pub above_plan: Option<f64>,
}

/// Bytes by what they hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Categories {
    pub weights: u64,
    pub gradients: u64,
    pub optimizer: u64,
    pub activations: u64,
    pub workspace: u64,
    pub communication: u64,
    /// What a process costs a GPU before its first tensor.
    pub context: u64,
}

impl From<&MemoryEstimate> for Categories {
    fn from(m: &MemoryEstimate) -> Self {
        Self {
            weights: m.weights,
            gradients: m.gradients,
            optimizer: m.optimizer,
            activations: m.activations,
            workspace: m.workspace,
            communication: m.communication,
            context: m.context,
        }
    }
}

/// Planned by `plan`, measured as `summary` says, and in a step that was watched as `held` says of each process by its first
/// rank.
#[must_use]
pub fn memory(plan: &Plan, summary: Option<&Summary>, held: &[MeasuredMemory]) -> Memory {
    let peak = |rank: usize| match summary {
        None => None,
        // The sum of several ranks is not one of theirs.
        Some(s) if s.ranks.is_empty() => s.peak_rss_bytes.filter(|_| plan.ranks.len() == 1),
        Some(s) => s.ranks.iter().find(|r| r.rank == rank).and_then(|r| r.peak_rss_bytes),
    };
    let found = |rank: &RankPlan| held.iter().find(|m| m.rank == rank.rank).copied();
    let of = |rank: &RankPlan| RankMemory {
        rank: rank.rank,
        stage: rank.stage,
        replica: rank.replica,
        device: rank.hardware.name.clone(),
        planned: Categories::from(&rank.memory),
        peak_rss: peak(rank.rank),
        measured: found(rank),
        above_plan: found(rank).and_then(|measured| above_plan(&rank.memory, &measured)),
    };
    Memory {
        ranks: plan.ranks.iter().take(MOST_RANKS).map(of).collect(),
        ranks_left_out: plan.ranks.len().saturating_sub(MOST_RANKS),
    }
}

/// What a process holds in tensors beside what was planned of them: without its code, and a GPU's context.
fn above_plan(planned: &MemoryEstimate, measured: &MeasuredMemory) -> Option<f64> {
    let held = measured.weights + measured.gradients + measured.optimizer + measured.step?;
    let tensors = planned.tensors();
    (tensors > 0).then(|| held as f64 / tensors as f64 - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_plan::testing::{compiled, experiment};

    #[test]
    fn the_difference_is_of_tensors() {
        let planned = &compiled(&experiment()).ranks[0].memory;
        let step = planned.tensors() - planned.weights - planned.gradients - planned.optimizer;
        let MemoryEstimate { weights, gradients, optimizer, .. } = *planned;
        let measured = |step| MeasuredMemory { rank: 0, weights, gradients, optimizer, step, device: None };
        assert_eq!(above_plan(planned, &measured(Some(step))), Some(0.0));
        let more = step + planned.tensors() / 10;
        assert!((above_plan(planned, &measured(Some(more))).unwrap() - 0.1).abs() < 1e-6);
        assert_eq!(above_plan(planned, &measured(None)), None);
        assert!(planned.tensors() < planned.total(), "the process itself is planned too");
    }
}
