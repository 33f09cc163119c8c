//! Memory by category, planned beside measured, rank by rank.

use serde::Serialize;

use crate::plan::Plan;
use crate::plan::types::{MemoryEstimate, RankPlan};
use crate::store::MeasuredMemory;
use crate::store::summary::Summary;

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
    let of = |rank: &RankPlan| RankMemory {
        rank: rank.rank,
        stage: rank.stage,
        replica: rank.replica,
        device: rank.hardware.name.clone(),
        planned: Categories::from(&rank.memory),
        peak_rss: peak(rank.rank),
        measured: held.iter().find(|m| m.rank == rank.rank).copied(),
    };
    Memory {
        ranks: plan.ranks.iter().take(MOST_RANKS).map(of).collect(),
        ranks_left_out: plan.ranks.len().saturating_sub(MOST_RANKS),
    }
}
