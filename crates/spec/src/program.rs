//! The program of one rank. The executor interprets it and knows nothing else about the experiment.

pub mod batch;
mod parameters;
mod stage;
pub mod text;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use batch::{BatchSpec, DataPosition, EpochBatch, RowOrder, RowSequence};
pub use stage::EarlierStage;

use crate::diagnostic::short;
use crate::error::PlainError;
pub use crate::experiment::{EvalLoss, HELLASWAG, ParallelMode, Precision, Recompute, Samples, Seeds, ShardedState};
use crate::forecast::Activity;
pub use crate::mesh::Mesh;
use crate::model::ModelSpec;
use crate::optimizer::{GroupOptions, Optimizer, in_plan};
pub use crate::schedule::LrSchedule;
use crate::serde_defaults::{is_default, is_true, yes};
use crate::topology::Lane;
use crate::transfer::Transfer;

/// The work of one rank: its part of the model, the instructions of one optimizer step, and the periodic ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Program {
    pub rank: usize,
    /// The arrangement of ranks. Instructions name peers by stage, and the mesh maps stages to ranks.
    pub mesh: Mesh,
    pub seed: Seeds,
    pub device: Device,
    pub precision: Precision,
    /// True if the optimizer updates f32 weights. If not, weights, gradients and moments are bf16.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub master_weights: bool,
    /// The part of a layer's forward that its backward computes again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub recompute: Recompute,
    pub model: ModelSpec,
    /// The parts of the model's block list that this rank holds, in the order of the model. One, except under interleaved
    /// schedules; chunk c of stage s is the c·stages + s-th part of the model.
    pub chunks: Vec<BlockRange>,
    /// Runs of blocks whose gradients are reduced together, in the order of the backward. Empty without replicas.
    pub buckets: Vec<BlockRange>,
    /// The elements of the flat storage whose optimizer state each replica holds, in the order of replicas. Empty if every replica holds
    /// all of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<Range<usize>>,
    /// The state that is divided where there are `shards`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sharded: ShardedState,
    pub batch: BatchSpec,
    /// Without its learning rate, which the schedule gives.
    #[serde(with = "in_plan")]
    pub optimizer: Optimizer,
    /// Settings of some parameters that differ from the optimizer's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupOptions>,
    /// The base of `train.transfer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<Transfer>,
    pub schedule: LrSchedule,
    /// Optimizer steps in the whole run.
    pub steps: u64,
    /// Executed once, before the first step of the run (not when it resumes).
    pub start: Vec<Instruction>,
    /// Executed once per optimizer step, in order.
    pub step: Vec<Instruction>,
    /// Executed after the step's instructions when due, in order.
    pub periodic: Vec<Periodic>,
    /// True if the rank copies its state when it saves, so that updates need not wait until the copy is written.
    #[serde(default, skip_serializing_if = "is_default")]
    pub copies_saved_state: bool,
    pub eval: EvalSpec,
    /// FLOPs of one optimizer step under the plan's MFU convention, and the device's peak FLOP/s, for reporting.
    pub flops_per_step: f64,
    pub peak_flops: Option<f64>,
    /// The stages before the last one, to which the other fields belong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<EarlierStage>,
}

/// See [`Program::cost_class`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CostClass {
    pub stage: usize,
    pub owns_optimizer: bool,
    pub shard_elements: Option<usize>,
    /// FLOPs of the orthogonalization of its matrices.
    pub orthogonalization_flops: u64,
    pub copies_saved_state: bool,
}

/// The device of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    Cpu,
    Cuda(usize),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl FromStr for Device {
    type Err = PlainError;

    fn from_str(text: &str) -> Result<Self, PlainError> {
        // Digits alone: a number's `parse` would take a sign too.
        let digits = |index: &&str| index.bytes().all(|b| b.is_ascii_digit());
        let cuda = || text.strip_prefix("cuda:").filter(digits)?.parse().ok();
        match text {
            "cpu" => Ok(Self::Cpu),
            _ => cuda()
                .map(Self::Cuda)
                .ok_or_else(|| PlainError::request(format!("unknown device `{}`; use `cpu` or `cuda:N`", short(text)))),
        }
    }
}

/// Consecutive blocks of the model's list, from `start` to before `end`. Block 0 is the embedding, 1 … layers are the layers, layers + 1
/// is the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockRange {
    pub start: usize,
    pub end: usize,
}

impl BlockRange {
    pub fn range(self) -> Range<usize> {
        self.start..self.end
    }

    pub fn contains(self, block: usize) -> bool {
        self.range().contains(&block)
    }

    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }

    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

impl From<Range<usize>> for BlockRange {
    fn from(range: Range<usize>) -> Self {
        Self { start: range.start, end: range.end }
    }
}

/// One instruction of a program. `mb` is a micro-batch of this rank's slice, `chunk` one of this rank's chunks, `to` and
/// `from` are stages of the same replica. The other end of a message is chunk `chunk` too, except where the model goes
/// from the last stage's chunk to the first stage's next one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Instruction {
    /// Reads micro-batch `mb` and adds its valid tokens to the step's count.
    Load { mb: usize },
    /// Adds up the valid tokens of the global batch over all replicas. Each token then has the weight `numerator` / tokens.
    CountTokens { numerator: u32 },
    /// dp: the root's weights go to the other ranks.
    BroadcastWeights,
    /// Starts what `GatherParameters` of the bucket completes.
    PrefetchParameters { bucket: usize },
    /// With a sharded optimizer: each replica sends the weights of the bucket's blocks that it updates to the other replicas, or waits for what
    /// `PrefetchParameters` started.
    GatherParameters { bucket: usize },
    /// Frees the weights of the bucket's blocks, which `GatherParameters` brings back.
    ReleaseParameters { bucket: usize },
    /// Runs `blocks` forward, the first ones of the chunk that have not run yet, and keeps the activations that their backward needs; `None`
    /// means the whole chunk.
    Forward {
        mb: usize,
        chunk: usize,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        blocks: Option<BlockRange>,
    },
    /// Adds the gradients of `blocks`, the last ones of the chunk whose backward has not run yet; `None` means the whole chunk.
    Backward { mb: usize, chunk: usize, blocks: Option<BlockRange> },
    /// Computes the input's gradient alone, and keeps what the weights' gradients need.
    BackwardInput { mb: usize, chunk: usize },
    /// Adds the weights' gradients of `blocks` from what `BackwardInput` kept. `blocks` means the same as for `Backward`.
    BackwardWeight { mb: usize, chunk: usize, blocks: Option<BlockRange> },
    /// Sends a chunk's output to the stage that holds the model's next part.
    SendActivation { mb: usize, chunk: usize, to: usize },
    /// Receives a chunk's input.
    RecvActivation { mb: usize, chunk: usize, from: usize },
    /// Sends the gradient of a chunk's input to the stage that holds the model's previous part.
    SendGradient { mb: usize, chunk: usize, to: usize },
    /// Receives the gradient of a chunk's output.
    RecvGradient { mb: usize, chunk: usize, from: usize },
    /// Starts the sum of a bucket's gradients over the replicas; they are not to be touched before `WaitBuckets`.
    AllReduce { bucket: usize },
    /// Starts the sum of a bucket's gradients into the replicas that update them. The next `ReduceScatter` or `WaitBuckets` ends it: the
    /// replica keeps the sums of its shard apart, and frees the bucket.
    ReduceScatter { bucket: usize },
    /// Waits for every sum that was started.
    WaitBuckets,
    /// dp: a bucket's gradients are summed into the root's.
    ReduceToRoot { bucket: usize },
    /// Sums the gradients of the tied embedding over the first and the last stage, which both hold it.
    SumTied,
    /// Scales gradients so that their global L2 norm, over all stages, is at most `max`; without `max`, only measures it.
    ClipNorm { max: Option<f64> },
    /// Updates the weights and clears the gradients.
    OptimizerStep,
    /// Clears the gradients. A step ends with this on a rank that updates no weights.
    ZeroGradients,
    /// Measures the validation loss and scores the tasks.
    Evaluate,
    /// Continues the prompts.
    Sample,
    /// Saves the training state.
    Checkpoint,
}

impl Instruction {
    /// The blocks that the instruction runs forward or backward on the rank of `program`.
    pub fn blocks_run(&self, program: &Program) -> Option<BlockRange> {
        match *self {
            Self::Forward { chunk, blocks, .. }
            | Self::Backward { chunk, blocks, .. }
            | Self::BackwardWeight { chunk, blocks, .. } => blocks.or_else(|| program.chunks.get(chunk).copied()),
            Self::BackwardInput { chunk, .. } => program.chunks.get(chunk).copied(),
            _ => None,
        }
    }

    /// The activity as which the instruction's time is drawn; `None` for messages, and for instructions outside of the computation.
    pub fn activity(&self) -> Option<Activity> {
        match self {
            Self::Forward { .. } => Some(Activity::Forward),
            Self::Backward { .. } => Some(Activity::Backward),
            Self::BackwardInput { .. } => Some(Activity::Input),
            Self::BackwardWeight { .. } => Some(Activity::Weight),
            Self::ClipNorm { .. } | Self::OptimizerStep | Self::ZeroGradients => Some(Activity::Update),
            Self::AllReduce { .. } | Self::ReduceScatter { .. } | Self::ReduceToRoot { .. } => Some(Activity::Reduce),
            Self::WaitBuckets
            | Self::SumTied
            | Self::BroadcastWeights
            | Self::GatherParameters { .. }
            | Self::CountTokens { .. } => Some(Activity::Collective),
            _ => None,
        }
    }
}

impl Program {
    pub fn world_size(&self) -> usize {
        self.mesh.world_size()
    }

    pub fn stage(&self) -> usize {
        self.mesh.stage_and_replica(self.rank).0
    }

    /// The share of the devices' peak FLOP/s that a step of `seconds` reaches; `None` if the peak is unknown.
    pub fn mfu(&self, seconds: f64) -> Option<f64> {
        self.peak_flops.map(|peak| self.flops_per_step / (peak * seconds))
    }

    /// The norm that gradients are clipped to, if they are.
    pub fn clip_norm(&self) -> Option<f64> {
        let clips =
            |instruction: &Instruction| if let Instruction::ClipNorm { max } = instruction { *max } else { None };
        self.step.iter().find_map(clips)
    }

    pub fn replica(&self) -> usize {
        self.mesh.stage_and_replica(self.rank).1
    }

    /// True if this rank updates weights. All ranks do, except dp's replicas other than the root.
    pub fn owns_optimizer(&self) -> bool {
        self.mesh.mode != ParallelMode::Dp || self.rank == 0
    }

    /// The number of optimizer buffers on this rank.
    pub fn moments(&self) -> usize {
        if self.owns_optimizer() { self.optimizer.description().moments() } else { 0 }
    }

    /// The elements of the flat storage whose optimizer state this rank alone holds; `None` if it holds all that its replicas do.
    pub fn shard(&self) -> Option<Range<usize>> {
        self.shards.get(self.replica()).cloned()
    }

    /// True if replicas divide `state`.
    pub fn divides(&self, state: ShardedState) -> bool {
        !self.shards.is_empty() && self.sharded >= state
    }

    /// The buckets whose weights `blocks` read: their own, and that of a tied embedding for the head.
    pub fn buckets_read_by(&self, blocks: BlockRange) -> impl Iterator<Item = usize> {
        let reads_tied = self.model.tie_embeddings && blocks.contains(self.model.layers + 1);
        let reads = move |bucket: &BlockRange| bucket.overlaps(blocks) || (reads_tied && bucket.contains(0));
        self.buckets.iter().enumerate().filter(move |(_, bucket)| reads(bucket)).map(|(index, _)| index)
    }

    /// What decides the cost of a rank besides its device: ranks of one class hold and compute as much.
    pub fn cost_class(&self) -> CostClass {
        CostClass {
            stage: self.stage(),
            owns_optimizer: self.owns_optimizer(),
            shard_elements: self.shard().map(|shard| shard.len()),
            orthogonalization_flops: self.orthogonalization_flops() as u64,
            copies_saved_state: self.copies_saved_state,
        }
    }

    /// The instruction by which replicas sum the gradients of `bucket`.
    pub fn reduction(&self, bucket: usize) -> Instruction {
        match self.mesh.mode {
            ParallelMode::Dp => Instruction::ReduceToRoot { bucket },
            _ if self.divides(ShardedState::Gradients) => Instruction::ReduceScatter { bucket },
            _ => Instruction::AllReduce { bucket },
        }
    }

    /// The instructions that give this rank all weights which other ranks update.
    pub fn weight_exchange(&self) -> Vec<Instruction> {
        match self.mesh.mode {
            ParallelMode::Dp => vec![Instruction::BroadcastWeights],
            _ if self.shards.is_empty() => Vec::new(),
            // In the order of the forward.
            _ => (0..self.buckets.len()).rev().map(|bucket| Instruction::GatherParameters { bucket }).collect(),
        }
    }

    /// The instructions that free what [`Self::weight_exchange`] brings.
    pub fn weight_release(&self) -> Vec<Instruction> {
        let buckets = if self.divides(ShardedState::Parameters) { self.buckets.len() } else { 0 };
        (0..buckets).map(|bucket| Instruction::ReleaseParameters { bucket }).collect()
    }

    /// The index of the part of a checkpoint that this rank writes, and the number of parts; `None` if it writes none. The first replica
    /// of each stage writes the stage's state, unless replicas hold different parts of it.
    pub fn checkpoint_part(&self) -> Option<(usize, usize)> {
        if self.shards.is_empty() {
            return (self.replica() == 0).then_some((self.stage(), self.mesh.stages));
        }
        Some((self.rank, self.world_size()))
    }

    /// Steps between validation losses; `None` if there are none.
    pub fn loss_every(&self) -> Option<u64> {
        self.eval.loss?;
        self.eval.loss_every.or_else(|| self.every(Instruction::Evaluate))
    }

    /// Steps between scores of the task `name`; `None` if it is not scored.
    pub fn task_every(&self, name: &str) -> Option<u64> {
        let task = self.eval.tasks().into_iter().find(|task| task.name == name)?;
        task.every.or_else(|| self.every(Instruction::Evaluate))
    }

    /// The shortest interval of the periodic instruction `wanted`.
    pub fn every(&self, wanted: Instruction) -> Option<u64> {
        Some(self.periodic.iter().find(|periodic| periodic.instruction == wanted)?.every)
    }

    /// True if training continues after some of the saves to which this rank contributes.
    pub fn saves_while_training(&self) -> bool {
        let is_before_end = |p: &Periodic| p.instruction == Instruction::Checkpoint && p.every < self.steps;
        self.checkpoint_part().is_some() && self.periodic.iter().any(is_before_end)
    }

    /// The virtual stage of chunk `chunk`: its number among all chunks of the model.
    pub fn virtual_stage(&self, chunk: usize) -> usize {
        chunk * self.mesh.stages + self.stage()
    }

    /// The entry of the block list into which a message flows that chunk `chunk` receives, or of whose input it is the gradient.
    pub fn received_at(&self, chunk: usize, lane: Lane) -> usize {
        let BlockRange { start, end } = self.chunks[chunk];
        if lane == Lane::Activation { start } else { end }
    }

    /// The same of a message that it sends.
    pub fn sent_at(&self, chunk: usize, lane: Lane) -> usize {
        let BlockRange { start, end } = self.chunks[chunk];
        if lane == Lane::Activation { end } else { start }
    }

    /// Numbers of one position in the widest message of this rank.
    pub fn widest_message(&self) -> usize {
        let last = self.model.layers + 1;
        let edges = self.chunks.iter().flat_map(|chunk| [chunk.start, chunk.end]);
        edges.filter(|edge| (1..=last).contains(edge)).map(|edge| self.model.width_to(edge)).max().unwrap_or(0)
    }

    /// True if two ranks hold the model's tied embedding and this is one of them.
    pub fn shares_tied(&self) -> bool {
        let (first, last) = (self.stage() == 0, self.stage() + 1 == self.mesh.stages);
        self.model.tie_embeddings && self.mesh.stages > 1 && (first || last)
    }
}

/// An instruction that follows every `every`-th step, and the last one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Periodic {
    pub every: u64,
    /// More intervals: the instruction is due after multiples of any of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also_every: Vec<u64>,
    pub instruction: Instruction,
}

impl Periodic {
    pub fn new(every: u64, instruction: Instruction) -> Self {
        Self { every, also_every: Vec::new(), instruction }
    }

    /// `instruction` whenever one of `intervals` says so; `None` without intervals. An interval that is a multiple of another adds nothing.
    pub fn at_any(mut intervals: Vec<u64>, instruction: Instruction) -> Option<Self> {
        intervals.sort_unstable();
        let mut needed: Vec<u64> = Vec::new();
        for every in intervals {
            if !needed.iter().any(|least| every.is_multiple_of(*least)) {
                needed.push(every);
            }
        }
        let (every, also_every) = needed.split_first()?;
        Some(Self { every: *every, also_every: also_every.to_vec(), instruction })
    }

    pub fn intervals(&self) -> impl Iterator<Item = u64> {
        std::iter::once(self.every).chain(self.also_every.iter().copied())
    }

    /// True if it is due when `done` steps of `steps` are done.
    pub fn is_due(&self, done: u64, steps: u64) -> bool {
        is_due(self.intervals(), done, steps)
    }

    /// True if it is due each time that `other` is.
    pub fn is_due_with(&self, other: &Self) -> bool {
        other.intervals().all(|every| self.intervals().any(|own| every.is_multiple_of(own)))
    }
}

/// True if something with these `intervals` is due when `done` steps of `steps` are done.
fn is_due(mut intervals: impl Iterator<Item = u64>, done: u64, steps: u64) -> bool {
    done == steps || intervals.any(|every| done.is_multiple_of(every))
}

/// The settings of `Evaluate` and `Sample`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalSpec {
    pub loss: Option<EvalLoss>,
    /// The interval of the loss if `Evaluate` has several; `None`: each `Evaluate` measures it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_every: Option<u64>,
    /// The number of multiple-choice items of all tasks; `None` if there is no task.
    pub choice_items: Option<usize>,
    /// The interval of the task `hellaswag`, if it is the only one and `Evaluate` has several intervals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice_every: Option<u64>,
    /// The tasks, unless `hellaswag` is the only one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<ScoredTask>,
    pub samples: Option<Samples>,
    /// Rows of the test data that are read at most; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_rows: Option<u64>,
}

/// A task of multiple choice in a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScoredTask {
    pub name: String,
    pub items: usize,
    /// Its interval, if `Evaluate` has several; `None`: each `Evaluate` scores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
}

impl EvalSpec {
    /// Scores `tasks`.
    #[must_use]
    pub fn with_tasks(mut self, tasks: Vec<ScoredTask>) -> Self {
        let items = tasks.iter().map(|task| task.items).sum();
        self.choice_items = (!tasks.is_empty()).then_some(items);
        match tasks.as_slice() {
            [only] if only.name == HELLASWAG => self.choice_every = only.every,
            _ => self.tasks = tasks,
        }
        self
    }

    /// The tasks that are scored.
    #[must_use]
    pub fn tasks(&self) -> Vec<ScoredTask> {
        match self.choice_items {
            Some(items) if self.tasks.is_empty() => {
                vec![ScoredTask { name: HELLASWAG.to_owned(), items, every: self.choice_every }]
            }
            _ => self.tasks.clone(),
        }
    }

    /// True if an `Evaluate` after `done` of `steps` steps measures the loss.
    pub fn is_loss_due(&self, done: u64, steps: u64) -> bool {
        self.loss.is_some() && self.loss_every.is_none_or(|every| is_due([every].into_iter(), done, steps))
    }
}

impl ScoredTask {
    /// True if an `Evaluate` after `done` of `steps` steps scores it.
    #[must_use]
    pub fn is_due(&self, done: u64, steps: u64) -> bool {
        self.every.is_none_or(|every| is_due([every].into_iter(), done, steps))
    }
}

/// Tokens in one forward of an evaluation, with padding.
pub const EVAL_TOKENS_PER_FORWARD: usize = 4096;
