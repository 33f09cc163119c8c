//! The plan: the content of `plan.json`, which `runner plan` shows.

use serde::{Deserialize, Serialize};

use crate::cluster::DeviceFacts;
use crate::data::DataFacts;
use crate::forecast::Forecast;
use crate::mesh::Mesh;
use crate::program::{BlockRange, Device, Program, RowSequence};
use crate::serde_defaults::is_default;

/// The version of `plan.json`. Version 1 had no mesh. Version 3 is the first that records its number.
pub const PLAN_FORMAT: u32 = 3;

/// Everything known of a run before it starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// [`PLAN_FORMAT`] of the program that wrote it.
    #[serde(default)]
    pub format: u32,
    /// A hash over everything that determines the run's numbers, 64 hex digits: see `docs/plan.md`.
    pub hash: String,
    /// A hash like `hash`, without the layout of ranks. Plans with the same one differ by rounding alone.
    pub math_hash: String,
    pub experiment_name: String,
    pub world_size: usize,
    pub mesh: Mesh,
    /// Messages that a channel between two ranks holds.
    pub channel_slots: usize,
    pub totals: Totals,
    pub data: DataFacts,
    /// Notes for a reader: choices that the planner made, and settings that have no effect.
    pub notes: Vec<String>,
    /// Settings that are valid but probably not intended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// If the devices lack memory for the ranks: how much is missing, and what would fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortage: Option<String>,
    pub ranks: Vec<RankPlan>,
    /// The predicted time of a step; `None` if the speed of the devices is unknown. Not part of the hashes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<Forecast>,
}

impl Plan {
    /// The rows that each step reads; `None` in a plan without ranks.
    pub fn row_sequence(&self) -> Option<RowSequence> {
        Some(self.ranks.first()?.program.row_sequence(self.data.train.rows))
    }

    /// The number of rows of the validation split that an evaluation reads; `None` without a split.
    pub fn validation_rows(&self) -> Option<u64> {
        let program = &self.ranks.first()?.program;
        let rows = program.eval.loss?.rows(program.batch.micro_batch);
        Some(rows.min(self.data.validation.as_ref()?.rows))
    }

    /// The number of rows of the test split that the test reads; `None` without a split.
    pub fn test_rows(&self) -> Option<u64> {
        let rows = self.data.test.as_ref()?.rows;
        Some(self.ranks.first()?.program.eval.test_rows.map_or(rows, |read| read.min(rows)))
    }
}

/// The run as a whole. Tokens count padding: they are positions computed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    pub steps: u64,
    pub sequences_per_step: usize,
    /// Micro-batches of one replica, whose gradients are summed into one step.
    pub accumulation_steps: usize,
    pub tokens: u64,
    /// True if rows may have padding, which the tokens of a run's record leave out.
    #[serde(default, skip_serializing_if = "is_default")]
    pub has_padding: bool,
    /// Passes over the training rows.
    pub epochs: f64,
    /// Parameters of the whole model.
    pub parameters: u64,
    #[serde(flatten)]
    pub pace: Pace,
}

/// The tokens and FLOPs of each step of all ranks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Of the steps of the last stage.
    pub tokens_per_step: u64,
    pub flops_per_step: f64,
    /// The stages before the last one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier_stages: Vec<StagePace>,
}

/// The steps from the end of the stage before to `until`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StagePace {
    pub until: u64,
    pub tokens_per_step: u64,
    pub flops_per_step: f64,
    /// The predicted time of a step; `None` if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_seconds: Option<f64>,
}

/// The first of the steps 1 to `most` for which `reaches` is true, as it is for all later ones; `most` if none before is.
pub fn first_step(most: u64, reaches: impl Fn(u64) -> bool) -> u64 {
    let (mut before, mut first) = (0, most);
    while first.saturating_sub(before) > 1 {
        let middle = before + (first - before) / 2;
        if reaches(middle) {
            first = middle;
        } else {
            before = middle;
        }
    }
    first
}

impl Pace {
    /// The sum over the first `steps` steps of what `earlier` says of a step of a stage, and `last` is for the last one.
    fn sum(&self, steps: u64, earlier: impl Fn(&StagePace) -> f64, last: f64) -> f64 {
        let (mut sum, mut done) = (0.0, 0);
        for stage in &self.earlier_stages {
            let until = stage.until.min(steps).max(done);
            sum += (until - done) as f64 * earlier(stage);
            done = until;
        }
        sum + steps.saturating_sub(done) as f64 * last
    }

    /// The tokens of the first `steps` steps, padding included.
    #[must_use]
    pub fn tokens_after(&self, steps: u64) -> f64 {
        self.sum(steps, |stage| stage.tokens_per_step as f64, self.tokens_per_step as f64)
    }

    /// The FLOPs of the first `steps` steps, as counted for MFU.
    #[must_use]
    pub fn flops_after(&self, steps: u64) -> f64 {
        self.sum(steps, |stage| stage.flops_per_step, self.flops_per_step)
    }

    /// The predicted seconds of the first `steps` steps, if a step of the last stage takes `last` seconds; `None` if they are unknown.
    #[must_use]
    pub fn seconds_after(&self, steps: u64, last: f64) -> Option<f64> {
        let is_known = self.earlier_stages.iter().all(|stage| stage.step_seconds.is_some());
        is_known.then(|| self.sum(steps, |stage| stage.step_seconds.unwrap_or(0.0), last))
    }
}

/// One rank: its place, its costs and its program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankPlan {
    pub rank: usize,
    pub device: Device,
    /// The facts it was planned with.
    pub hardware: DeviceFacts,
    pub stage: usize,
    pub replica: usize,
    /// Entries of the model's block list on this rank: 0 is the embedding, 1 … layers the layers, layers + 1 the head.
    pub chunks: Vec<BlockRange>,
    /// Micro-batches (per chunk) whose activations are alive at once, at most.
    pub in_flight: usize,
    /// The effect of `precision` on this device, in words.
    pub precision: String,
    pub params: ParamCounts,
    pub memory: MemoryEstimate,
    pub flops: Flops,
    pub program: Program,
}

/// Parameters by whether weight decay applies. Counts of tensors and of elements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParamCounts {
    pub decayed_tensors: usize,
    pub decayed: u64,
    pub other_tensors: usize,
    pub other: u64,
    pub total: u64,
}

/// The line of the memory table for a rank's process without any tensor.
pub const PROCESS_ITEM: &str = "process";

/// The line of the memory table for what the command takes: in its process, which is also the rank's, or beside the ranks' processes.
pub const COMMAND_ITEM: &str = "command";

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
    /// The copy of the training state that is written to a checkpoint while training continues.
    #[serde(default, skip_serializing_if = "is_default")]
    pub checkpoint: u64,
    /// GPU memory of a process that is not for tensors: of the driver, of kernels, and of NCCL.
    #[serde(default, skip_serializing_if = "is_default")]
    pub context: u64,
    pub items: Vec<MemoryItem>,
}

impl MemoryEstimate {
    /// Bytes of each category.
    pub fn categories(&self) -> [(MemoryCategory, u64); 8] {
        [
            (MemoryCategory::Weights, self.weights),
            (MemoryCategory::Gradients, self.gradients),
            (MemoryCategory::Optimizer, self.optimizer),
            (MemoryCategory::Activations, self.activations),
            (MemoryCategory::Workspace, self.workspace),
            (MemoryCategory::Communication, self.communication),
            (MemoryCategory::Checkpoint, self.checkpoint),
            (MemoryCategory::Context, self.context),
        ]
    }

    /// Bytes of the tensors of a step: of all categories, without the process itself, what a GPU needs besides tensors, and the copy for a
    /// checkpoint.
    pub fn tensors(&self) -> u64 {
        let is_process = |item: &&MemoryItem| item.what == PROCESS_ITEM || item.what == COMMAND_ITEM;
        let process = self.items.iter().filter(is_process).map(|i| i.bytes).sum();
        self.total().saturating_sub(self.context + self.checkpoint).saturating_sub(process)
    }

    /// Bytes of all categories.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum MemoryCategory {
    Weights,
    Gradients,
    Optimizer,
    Activations,
    Workspace,
    #[strum(serialize = "messages")]
    Communication,
    Checkpoint,
    Context,
}

impl MemoryCategory {
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// FLOPs of one optimizer step. `forward` and `backward` count every matrix product exactly (2·m·n·k, causal attention in
/// full); `step` is the figure of the named convention, which MFU is reported against.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Flops {
    pub forward: f64,
    pub backward: f64,
    /// FLOPs of the forward that the backward repeats. They are neither in `backward` nor in `step`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub recomputed: f64,
    pub step: f64,
    pub convention: String,
}
