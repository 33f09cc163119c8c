//! The validated experiment: every default filled in, every unit resolved.
//!
//! It serializes with the keys of the experiment file, so `resolved.yaml` is a valid experiment file. `runner_config` checks what
//! is legal.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

mod data;
mod parallel;

use crate::serde_defaults::{is_default, is_true, yes};
pub use data::{
    Corpus, Data, HUB_DEFAULT_BRANCH, HubSource, JsonSource, Layout, PaddingMask, ParquetSource, Source, Tokenizer,
    Validation,
};
pub use parallel::{AutoOr, Parallel, ParallelMode, Pipeline, PipelineSchedule};

/// A whole experiment, ready for the planner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    pub version: u32,
    pub name: String,
    pub seed: u64,
    pub device: DeviceChoice,
    pub model: Model,
    pub data: Data,
    pub batch: Batch,
    pub train: Train,
    pub optimizer: Optimizer,
    pub schedule: Schedule,
    pub precision: Precision,
    /// True if the optimizer updates f32 weights. False, under `bf16` only: weights and moments are bf16 values.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub master_weights: bool,
    pub parallel: Parallel,
    pub eval: Eval,
    pub checkpoint: Checkpoint,
    pub log: Log,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceChoice {
    Auto,
    Cpu,
    Cuda,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    Gpt2,
    Llama,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    Fp32,
    Tf32,
    Bf16,
}

/// The model section. Sizes are counts of elements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "keys of the file that are true or false")]
pub struct Model {
    pub family: Family,
    /// `None`: the tokenizer's size, known once the data is there.
    pub vocab_size: Option<usize>,
    /// The vocabulary is rounded up to a multiple of this.
    pub pad_vocab_to: Option<usize>,
    pub context_length: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub d_model: usize,
    pub d_ff: usize,
    pub dropout: f64,
    pub tie_embeddings: bool,
    pub norm_eps: f64,
    /// Llama only.
    pub rope_theta: f64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub norm: NormPlace,
    #[serde(default, skip_serializing_if = "is_default")]
    pub activation: Activation,
    #[serde(default, skip_serializing_if = "is_default")]
    pub positions: PositionKind,
    /// True if token embeddings are multiplied by √`d_model`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub embedding_scale: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub head_bias: bool,
    /// True if there is a norm before the head.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub final_norm: bool,
    /// The dropout after the activation of the feed-forward layer.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mlp_dropout: f64,
    /// `None`: normal(0, 0.02).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<WeightInit>,
}

/// Where the norms of a layer stand (gpt2): x + f(norm(x)), or norm(x + f(x)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NormPlace {
    #[default]
    Pre,
    Post,
}

/// Between the feed-forward layer's two matrices (gpt2). GELU is its tanh form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    #[default]
    Gelu,
    Relu,
}

/// How a model knows positions (gpt2): by trained vectors, or sines and cosines of fixed frequencies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PositionKind {
    #[default]
    Learned,
    Sinusoidal,
}

/// The source of initial weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum WeightInit {
    From(PathBuf),
    Pytorch { embedding: f64 },
}

/// `sequences` is the global batch of one optimizer step, `micro_batch` the sequences of one forward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    pub sequences: usize,
    pub micro_batch: usize,
}

/// The length of the training: exactly one of `steps`, `epochs` and `tokens` is set. The planner turns epochs and tokens into steps
/// (rounded down, at least one).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Train {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Global L2 norm to which gradients are clipped; `None` leaves them.
    pub clip_norm: Option<f64>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub recompute: Recompute,
}

/// What a layer's backward computes again of the forward, instead of keeping it: nothing; attention's projections, outputs and
/// log-sum-exps; or all but the layer's input. The numbers are the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    #[default]
    None,
    Attention,
    Block,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Optimizer {
    Adamw {
        lr: f64,
        betas: [f64; 2],
        eps: f64,
        weight_decay: f64,
        #[serde(default, skip_serializing_if = "is_default")]
        decays: Decays,
    },
    Sgd {
        lr: f64,
        momentum: f64,
    },
}

/// Which parameters weight decay acts on: those of two or more dimensions, or biases and gains too, as
/// `torch.optim.AdamW(model.parameters())` has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Decays {
    #[default]
    Matrices,
    All,
}

impl Optimizer {
    /// The peak learning rate, which the schedule multiplies.
    pub fn lr(&self) -> f64 {
        match *self {
            Self::Adamw { lr, .. } | Self::Sgd { lr, .. } => lr,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    pub warmup: Warmup,
    pub decay: Decay,
}

/// Without `from`: lr·(step+1)/steps. With it: linear from `from`·lr at step 0 to lr at step `steps`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Warmup {
    pub steps: u64,
    pub from: Option<f64>,
}

/// `final_` is a fraction of the peak learning rate; `steps` counts from the end of the warmup, `None` meaning the rest
/// of the run; constant afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Decay {
    Cosine {
        #[serde(rename = "final")]
        final_: f64,
        steps: Option<u64>,
    },
    Linear {
        #[serde(rename = "final")]
        final_: f64,
        steps: Option<u64>,
    },
    /// Exactly one of `every` (steps) and `epochs` is set.
    Step {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        every: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        epochs: Option<f64>,
        gamma: f64,
    },
    Constant {},
}

/// `every` is in optimizer steps; evaluation also follows the last step. A part that is `None` is not evaluated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Eval {
    pub every: u64,
    /// True if there is an evaluation before the first step too.
    pub at_start: bool,
    pub loss: Option<EvalLoss>,
    pub hellaswag: Option<HellaSwag>,
    pub samples: Option<Samples>,
    /// Measured once, after the last step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<Source>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvalLoss {
    /// The most micro-batches of the validation split that are read, from its start.
    pub batches: usize,
}

/// Exactly one of `file` and `builtin` is set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HellaSwag {
    pub file: Option<PathBuf>,
    pub builtin: Option<Corpus>,
    /// At most this many items, from the start.
    pub limit: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    pub prompts: Vec<String>,
    /// Continuations of each prompt.
    pub count: usize,
    pub max_tokens: usize,
    pub top_k: Option<usize>,
    pub temperature: f64,
    pub top_p: Option<f64>,
    pub seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Optimizer steps between checkpoints; one follows the last step in any case.
    pub every: u64,
    /// The newest this many are kept, and the best by validation loss.
    pub keep: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// Optimizer steps between progress lines; metrics are recorded for every step.
    pub every: u64,
}
