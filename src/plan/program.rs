//! The Program: everything one rank does, as data. The executor interprets it and knows nothing else of the experiment.

use serde::{Deserialize, Serialize};

pub use crate::config::experiment::{EvalLoss, Precision, Samples};
use crate::model::spec::ModelSpec;

/// One rank's work: what it holds, what it does in one optimizer step, and what it does from time to time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Program {
    pub rank: usize,
    pub world_size: usize,
    pub seed: u64,
    pub device: Device,
    pub precision: Precision,
    pub model: ModelSpec,
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
/// (start, count), in micro-batches of `micro_batch` rows, the last of which may be smaller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchSpec {
    pub sequences: usize,
    pub slice: (usize, usize),
    pub micro_batch: usize,
    /// Inputs per row.
    pub length: usize,
}

impl BatchSpec {
    /// Micro-batches in this rank's slice.
    #[must_use]
    pub fn micro_batches(&self) -> usize {
        self.slice.1.div_ceil(self.micro_batch)
    }

    /// Rows of micro-batch `mb`, as (start, count) within the global batch.
    #[must_use]
    pub fn rows(&self, mb: usize) -> (usize, usize) {
        let start = mb * self.micro_batch;
        (self.slice.0 + start, self.micro_batch.min(self.slice.1 - start))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerSpec {
    /// Loshchilov and Hutter 2019; decay on parameters of two or more dimensions.
    AdamW {
        beta1: f64,
        beta2: f64,
        eps: f64,
        weight_decay: f64,
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
    Cosine { last: f64, steps: u64 },
    Linear { last: f64, steps: u64 },
    Step { every: u64, gamma: f64 },
    Constant,
}

/// The vocabulary of a program.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Instruction {
    /// Read micro-batch `mb` and add its valid tokens to the step's count.
    Load {
        mb: usize,
    },
    Forward {
        mb: usize,
    },
    /// Adds into the gradients, each token weighted 1 / valid tokens of the global batch.
    Backward {
        mb: usize,
    },
    /// Scale gradients so that their global L2 norm is at most `max`; without `max`, only measure it.
    ClipNorm {
        max: Option<f64>,
    },
    /// Update the weights, clear the gradients.
    OptimizerStep,
    Evaluate,
    Sample,
    Checkpoint,
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
