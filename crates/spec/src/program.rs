//! The Program: everything one rank does, as data. The executor interprets it and knows nothing else of the experiment.

pub mod text;

use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use crate::experiment::{Decays, EvalLoss, Precision, Recompute, Samples};
pub use crate::mesh::{Mesh, Mode};
use crate::model::ModelSpec;
use crate::serde_defaults::{is_default, is_true, yes};

/// One rank's work: what it holds, what it does in one optimizer step, and what it does from time to time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Program {
    pub rank: usize,
    /// How the ranks are arranged. Instructions name peers by stage; the mesh says which ranks those are.
    pub mesh: Mesh,
    pub seed: u64,
    pub device: Device,
    pub precision: Precision,
    /// Whether f32 weights stand behind those that are rounded to bf16. If not, weights, gradients and moments are bf16.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub master_weights: bool,
    /// What a layer's backward computes again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub recompute: Recompute,
    pub model: ModelSpec,
    /// The parts of the model's block list that this rank holds, in the order of the model. One, except under interleaved
    /// schedules; chunk c of stage s is the c·stages + s-th part of the model.
    pub chunks: Vec<Blocks>,
    /// Runs of blocks whose gradients are reduced together, in the order of the backward. Empty without replicas.
    pub buckets: Vec<Blocks>,
    pub batch: BatchSpec,
    pub optimizer: OptimizerSpec,
    pub schedule: LrSchedule,
    /// Optimizer steps in the whole run.
    pub steps: u64,
    /// Executed once, before the first step of the run (not when it resumes).
    pub start: Vec<Instruction>,
    /// Executed once per optimizer step, in order.
    pub step: Vec<Instruction>,
    /// Executed after the step's instructions when due, in order.
    pub periodic: Vec<Periodic>,
    pub eval: EvalSpec,
    /// FLOPs of one optimizer step under the plan's MFU convention, and the device's peak FLOP/s, for reporting.
    pub flops_per_step: f64,
    pub peak_flops: Option<f64>,
}

/// Where a rank runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    Cpu,
    Cuda(usize),
}

/// The global batch of step s is samples s·sequences … (s+1)·sequences of the data order; this rank takes `slice` of it
/// (start, count), every `stride`-th row from the start on, in micro-batches of `micro_batch` rows, the last of which may be
/// smaller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchSpec {
    pub sequences: usize,
    pub slice: (usize, usize),
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub stride: usize,
    pub micro_batch: usize,
    /// Inputs per row.
    pub length: usize,
    /// Whether attention sees no padding.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mask_padding: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub order: Order,
}

/// In which order an epoch's rows come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// As they lie in the source, instead of a fresh permutation in every epoch.
    pub sequential: bool,
    /// The rows of an epoch that fill no global batch are left out; else the next epoch begins within the batch.
    pub drop_last: bool,
}

impl Order {
    /// Rows of an epoch that are trained on, of `rows`, in steps of `sequences`.
    #[must_use]
    pub fn used(self, rows: u64, sequences: usize) -> u64 {
        let sequences = (sequences as u64).max(1);
        if self.drop_last && rows >= sequences { rows / sequences * sequences } else { rows }
    }
}

fn one() -> usize {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_one(stride: &usize) -> bool {
    *stride == 1
}

impl BatchSpec {
    /// Micro-batches in this rank's slice.
    #[must_use]
    pub fn micro_batches(&self) -> usize {
        self.slice.1.div_ceil(self.micro_batch)
    }

    /// Rows of micro-batch `mb`, as (start, count) within the global batch; they are `stride` apart.
    #[must_use]
    pub fn rows(&self, mb: usize) -> (usize, usize) {
        let start = mb * self.micro_batch;
        (self.slice.0 + start * self.stride, self.micro_batch.min(self.slice.1 - start))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerSpec {
    /// Loshchilov and Hutter 2019.
    AdamW {
        beta1: f64,
        beta2: f64,
        eps: f64,
        weight_decay: f64,
        #[serde(default, skip_serializing_if = "is_default")]
        decays: Decays,
    },
    Sgd {
        momentum: f64,
    },
}

impl OptimizerSpec {
    /// Optimizer buffers of the parameters' size (moments).
    #[must_use]
    pub fn moments(&self) -> usize {
        match *self {
            Self::AdamW { .. } => 2,
            Self::Sgd { momentum } => usize::from(momentum != 0.0),
        }
    }
}

/// Learning rate per step: see `optim::lr`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LrSchedule {
    pub peak: f64,
    pub warmup_steps: u64,
    pub warmup_from: Option<f64>,
    pub decay: LrDecay,
}

/// `last` is the final fraction of the peak; `steps` counts from the end of the warmup.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrDecay {
    Cosine {
        last: f64,
        steps: u64,
    },
    Linear {
        last: f64,
        steps: u64,
    },
    Step {
        every: u64,
        gamma: f64,
    },
    /// At the first step that begins `rows` rows, or a multiple of them, behind the warmup, of `sequences` a step.
    Rows {
        rows: u64,
        sequences: u64,
        gamma: f64,
    },
    Constant,
}

/// A run of blocks in the model's list (0 the embedding, 1 … layers, layers + 1 the head): `start` up to before `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Blocks {
    pub start: usize,
    pub end: usize,
}

impl Blocks {
    #[must_use]
    pub fn range(self) -> Range<usize> {
        self.start..self.end
    }

    #[must_use]
    pub fn contains(self, block: usize) -> bool {
        self.range().contains(&block)
    }

    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }
}

impl From<Range<usize>> for Blocks {
    fn from(range: Range<usize>) -> Self {
        Self { start: range.start, end: range.end }
    }
}

/// The vocabulary of a program. `mb` is a micro-batch of this rank's slice, `chunk` one of this rank's chunks, `to` and
/// `from` are stages of the same replica. The other end of a message is chunk `chunk` too, except where the model goes
/// from the last stage's chunk to the first stage's next one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Instruction {
    /// Read micro-batch `mb` and add its valid tokens to the step's count.
    Load {
        mb: usize,
    },
    /// Add up the valid tokens of the global batch over all replicas, and settle what each weighs: `numerator` / tokens.
    CountTokens {
        numerator: u32,
    },
    /// dp: the root's weights go to the other ranks.
    BroadcastWeights,
    Forward {
        mb: usize,
        chunk: usize,
    },
    /// Adds the gradients of `blocks`, the last ones of the chunk that have not been run backwards yet; `None`: all of it.
    Backward {
        mb: usize,
        chunk: usize,
        blocks: Option<Blocks>,
    },
    /// The input's gradient alone; keeps what the weights' gradients need.
    BackwardInput {
        mb: usize,
        chunk: usize,
    },
    /// Adds the weights' gradients of `blocks`, of what `BackwardInput` kept; as in `Backward`.
    BackwardWeight {
        mb: usize,
        chunk: usize,
        blocks: Option<Blocks>,
    },
    SendActivation {
        mb: usize,
        chunk: usize,
        to: usize,
    },
    RecvActivation {
        mb: usize,
        chunk: usize,
        from: usize,
    },
    SendGradient {
        mb: usize,
        chunk: usize,
        to: usize,
    },
    RecvGradient {
        mb: usize,
        chunk: usize,
        from: usize,
    },
    /// Starts the sum of a bucket's gradients over the replicas; they are not to be touched before `WaitBuckets`.
    AllReduce {
        bucket: usize,
    },
    /// Waits for every all-reduce that was started.
    WaitBuckets,
    /// dp: a bucket's gradients are summed into the root's.
    ReduceToRoot {
        bucket: usize,
    },
    /// Sums the gradients of the tied embedding over the first and the last stage, which both hold it.
    SumTied,
    /// Scale gradients so that their global L2 norm, over all stages, is at most `max`; without `max`, only measure it.
    ClipNorm {
        max: Option<f64>,
    },
    /// Update the weights, clear the gradients.
    OptimizerStep,
    /// Clear the gradients: how a step ends on a rank that updates no weights.
    ZeroGradients,
    Evaluate,
    Sample,
    Checkpoint,
}

impl Program {
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.mesh.world_size()
    }

    #[must_use]
    pub fn stage(&self) -> usize {
        self.mesh.place(self.rank).0
    }

    #[must_use]
    pub fn replica(&self) -> usize {
        self.mesh.place(self.rank).1
    }

    /// Whether this rank updates weights: all do, except dp's replicas besides the root.
    #[must_use]
    pub fn owns_optimizer(&self) -> bool {
        self.mesh.mode != Mode::Dp || self.rank == 0
    }

    /// Optimizer buffers that this rank holds.
    #[must_use]
    pub fn moments(&self) -> usize {
        if self.owns_optimizer() { self.optimizer.moments() } else { 0 }
    }

    /// The part of the model that chunk `chunk` is, counted through the model: its virtual stage.
    #[must_use]
    pub fn virtual_stage(&self, chunk: usize) -> usize {
        chunk * self.mesh.stages + self.stage()
    }

    /// Whether the model's tied embedding lies on two ranks, of which this is one.
    #[must_use]
    pub fn shares_tied(&self) -> bool {
        let (first, last) = (self.stage() == 0, self.stage() + 1 == self.mesh.stages);
        self.model.tie_embeddings && self.mesh.stages > 1 && (first || last)
    }
}

/// Do `instruction` after every `every`-th step, and after the last.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Periodic {
    pub every: u64,
    pub instruction: Instruction,
}

impl Periodic {
    /// Whether it is due when `done` steps of `steps` are done.
    #[must_use]
    pub fn due(&self, done: u64, steps: u64) -> bool {
        done == steps || done.is_multiple_of(self.every)
    }
}

/// What `Evaluate` and `Sample` do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalSpec {
    pub loss: Option<EvalLoss>,
    /// How many multiple-choice items are scored; `None`: no such evaluation.
    pub choice_items: Option<usize>,
    pub samples: Option<Samples>,
}

/// Tokens in one forward, padding included.
pub const BATCH_TOKENS: usize = 4096;

/// The same on a GPU, which computes more at once and is waited for after each part.
pub const DEVICE_ROWS: usize = 2048;
