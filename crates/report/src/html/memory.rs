//! Memory by category, planned and measured, for each rank.

use serde::Serialize;

use runner_record::summary::Summary;
use runner_spec::event::WatchedMemory as MeasuredMemory;
use runner_spec::experiment::ParallelMode;
use runner_spec::plan::{MemoryEstimate, Plan, RankPlan};

/// Ranks that are shown at most.
const MAX_RANKS: usize = 64;

/// The memory of all ranks.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct MemoryTable {
    pub(super) ranks: Vec<RankMemory>,
    pub(super) ranks_left_out: usize,
}

/// The memory of one rank, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct RankMemory {
    pub(super) rank: usize,
    pub(super) stage: usize,
    pub(super) replica: usize,
    pub(super) device: String,
    #[serde(serialize_with = "serialize_categories")]
    pub(super) planned: MemoryEstimate,
    /// The peak of resident memory; `None` if it was not measured, or if the rank is a thread of a process with other ranks.
    pub(super) peak_rss: Option<u64>,
    /// The memory in the measured step.
    pub(super) measured: Option<MeasuredMemory>,
    /// The share by which measured tensors exceed planned tensors.
    pub(super) above_plan: Option<f64>,
}

/// Writes the planned bytes of each category.
fn serialize_categories<S: serde::Serializer>(planned: &MemoryEstimate, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(planned.categories())
}

/// The memory that `plan` plans, with the peaks in `summary` and the memory that each process `measured`, which counts for its
/// first rank.
pub(super) fn memory_table(plan: &Plan, summary: Option<&Summary>, measured: &[MeasuredMemory]) -> MemoryTable {
    let peak = |rank: usize| match summary {
        None => None,
        // The peak of a run with several ranks is their sum.
        Some(s) if s.ranks.is_empty() => s.peak_rss_bytes.filter(|_| plan.ranks.len() == 1),
        Some(s) => s.ranks.iter().find(|r| r.rank == rank).and_then(|r| r.peak_rss_bytes),
    };
    let measured_by = |rank: &RankPlan| measured.iter().find(|m| m.rank == rank.rank).copied();
    // The replicas of dp share one process, whose memory is measured as that of its first rank.
    let planned_tensors = |rank: &RankPlan| match plan.mesh.mode {
        ParallelMode::Dp => plan.ranks.iter().map(|rank| rank.memory.tensors()).sum(),
        _ => rank.memory.tensors(),
    };
    let row = |rank: &RankPlan| RankMemory {
        rank: rank.rank,
        stage: rank.stage,
        replica: rank.replica,
        device: rank.hardware.name.clone(),
        planned: rank.memory.clone(),
        peak_rss: peak(rank.rank),
        measured: measured_by(rank),
        above_plan: measured_by(rank).and_then(|measured| above_plan(planned_tensors(rank), &measured)),
    };
    MemoryTable {
        ranks: plan.ranks.iter().take(MAX_RANKS).map(row).collect(),
        ranks_left_out: plan.ranks.len().saturating_sub(MAX_RANKS),
    }
}

/// The share by which the measured tensors of a process exceed the `planned` bytes. Code and a GPU's context are not tensors.
fn above_plan(planned: u64, measured: &MeasuredMemory) -> Option<f64> {
    let held = measured.weights + measured.gradients + measured.optimizer + measured.step?;
    (planned > 0).then(|| held as f64 / planned as f64 - 1.0)
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
        assert_eq!(above_plan(planned.tensors(), &measured(Some(step))), Some(0.0));
        let more = step + planned.tensors() / 10;
        assert!((above_plan(planned.tensors(), &measured(Some(more))).unwrap() - 0.1).abs() < 1e-6);
        assert_eq!(above_plan(planned.tensors(), &measured(None)), None);
        assert!(planned.tensors() < planned.total(), "the process itself is planned too");
    }
    #[test]
    fn replicas_of_one_process_are_planned_together() {
        let mut dp = experiment();
        (dp.parallel.mode, dp.parallel.replicas) = (ParallelMode::Dp, 2);
        let plan = compiled(&dp);
        let sum = |part: fn(&MemoryEstimate) -> u64| plan.ranks.iter().map(|rank| part(&rank.memory)).sum::<u64>();
        let (weights, gradients, optimizer) = (sum(|m| m.weights), sum(|m| m.gradients), sum(|m| m.optimizer));
        let step = Some(sum(MemoryEstimate::tensors) - weights - gradients - optimizer);
        let measured = MeasuredMemory { rank: 0, weights, gradients, optimizer, step, device: None };
        assert_eq!(memory_table(&plan, None, &[measured]).ranks[0].above_plan, Some(0.0));
    }
}
