//! The plan as data: what `plan.json` holds and `runner plan` shows.

use serde::{Deserialize, Serialize};

use crate::cluster::DeviceFacts;
use crate::data::DataFacts;
use crate::forecast::Forecast;
use crate::mesh::Mesh;
use crate::program::{Blocks, Device, Program};
use crate::serde_defaults::is_default;

/// Version of `plan.json`. 1 had no mesh, 2 no number; this is the first that says which it is.
pub const FORMAT: u32 = 3;

/// Everything known of a run before it starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// `FORMAT` of the version that wrote it.
    #[serde(default)]
    pub format: u32,
    /// 64 hex digits over all that determines the run's numbers: see `docs/plan.md`.
    pub hash: String,
    /// As `hash`, over what remains when the layout is taken away: plans with the same one differ by rounding alone.
    pub math_hash: String,
    pub experiment_name: String,
    pub world_size: usize,
    pub mesh: Mesh,
    /// Messages that a channel between two ranks holds.
    pub channel_slots: usize,
    pub totals: Totals,
    pub data: DataFacts,
    /// What a reader should know: choices made for them, what was left out.
    pub notes: Vec<String>,
    /// Where the devices do not have the memory that the ranks need: how much is missing, and what would fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortage: Option<String>,
    pub ranks: Vec<RankPlan>,
    /// What a step is predicted to take; `None` where the speed of the devices is not known. Not in the hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<Forecast>,
}

/// The run as a whole. Tokens count padding: they are positions computed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    pub steps: u64,
    pub sequences_per_step: usize,
    pub tokens_per_step: u64,
    /// Micro-batches of one replica, whose gradients are summed into one step.
    pub accumulation_steps: usize,
    pub tokens: u64,
    /// Passes over the training rows.
    pub epochs: f64,
    /// Parameters of the whole model, and FLOPs of one step of all ranks.
    pub parameters: u64,
    pub flops_per_step: f64,
}

/// One rank: its place, what it costs, what it does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankPlan {
    pub rank: usize,
    pub device: Device,
    /// The facts it was planned with.
    pub hardware: DeviceFacts,
    pub stage: usize,
    pub replica: usize,
    /// Entries of the model's block list that it holds: 0 is the embedding, 1 … layers the layers, layers + 1 the head.
    pub chunks: Vec<Blocks>,
    /// Micro-batches (per chunk) whose activations are alive at once, at most.
    pub in_flight: usize,
    /// What `precision` turns into on this device.
    pub precision: String,
    pub params: ParamCounts,
    pub memory: MemoryEstimate,
    pub flops: Flops,
    pub program: Program,
}

/// Parameters by whether weight decay applies. Counts of tensors and of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParamCounts {
    pub decayed_tensors: usize,
    pub decayed: u64,
    pub other_tensors: usize,
    pub other: u64,
    pub total: u64,
}

/// The line of the memory table that stands for the process without any tensor.
pub const PROCESS: &str = "process";

/// Peak bytes by category, and the table they are the sums of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryEstimate {
    pub weights: u64,
    pub gradients: u64,
    pub optimizer: u64,
    pub activations: u64,
    pub workspace: u64,
    /// Messages between ranks.
    #[serde(default)]
    pub communication: u64,
    /// What a process costs a GPU before its first tensor.
    #[serde(default, skip_serializing_if = "none")]
    pub context: u64,
    pub items: Vec<MemoryItem>,
}

impl MemoryEstimate {
    /// Bytes of each category.
    #[must_use]
    pub fn categories(&self) -> [(MemoryCategory, u64); 7] {
        [
            (MemoryCategory::Weights, self.weights),
            (MemoryCategory::Gradients, self.gradients),
            (MemoryCategory::Optimizer, self.optimizer),
            (MemoryCategory::Activations, self.activations),
            (MemoryCategory::Workspace, self.workspace),
            (MemoryCategory::Communication, self.communication),
            (MemoryCategory::Context, self.context),
        ]
    }

    /// Bytes of tensors: of all categories, without the process itself and a GPU's context.
    #[must_use]
    pub fn tensors(&self) -> u64 {
        let process = self.items.iter().filter(|i| i.what == PROCESS).map(|i| i.bytes).sum();
        self.total().saturating_sub(self.context).saturating_sub(process)
    }

    /// Bytes of all categories.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.categories().into_iter().fold(0, |sum, (_, bytes)| sum.saturating_add(bytes))
    }
}

/// One line of the memory table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryItem {
    pub category: MemoryCategory,
    pub what: String,
    /// Bytes of one, and how many there are.
    pub bytes: u64,
    pub count: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryCategory {
    Weights,
    Gradients,
    Optimizer,
    Activations,
    Workspace,
    Communication,
    Context,
}

impl MemoryCategory {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Gradients => "gradients",
            Self::Optimizer => "optimizer",
            Self::Activations => "activations",
            Self::Workspace => "workspace",
            Self::Communication => "messages",
            Self::Context => "context",
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn none(bytes: &u64) -> bool {
    *bytes == 0
}

/// FLOPs of one optimizer step. `forward` and `backward` count every matrix product exactly (2·m·n·k, causal attention in
/// full); `step` is the figure of the named convention, which MFU is reported against.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Flops {
    pub forward: f64,
    pub backward: f64,
    /// What the backward computes again of the forward: neither in `backward` nor in `step`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub recomputed: f64,
    pub step: f64,
    pub convention: String,
}
