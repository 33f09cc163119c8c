//! The experiment file as written: every key, its default and its legal range, and nothing that depends on another key.
//!
//! These types are the single source of truth about the format. Their doc comments are what an editor shows, their
//! attributes become the JSON Schema that files are checked against. What depends on several keys is `resolve`'s.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

pub(crate) use super::raw_data::RawData;
pub(crate) use super::raw_eval::RawEval;
pub(crate) use super::raw_parallel::RawParallel;
use runner_spec::experiment::{
    Activation, Decays, DeviceChoice, Family, NormPlace, PositionKind, Precision, Recompute,
};

/// Keys of which one layer gives at most one, and of which a higher layer's replaces a lower layer's.
pub(crate) const EXCLUSIVE: &str = "x-exclusive";

/// Keeps "given as null" (`Some(None)`) apart from "not given" (`None`).
#[expect(clippy::option_option, reason = "three states: not given, given as null, given")]
pub(crate) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(from).map(Some)
}

/// Defines a function for each default of a key, by which serde and the schema know it.
macro_rules! defaults {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(fn $name() -> $type { $value })*
    };
}
pub(crate) use defaults;

defaults! {
    embedding_range: f64 = 0.1;
    adamw_lr: f64 = 6e-4;
    adamw_betas: [f64; 2] = [0.9, 0.95];
    adamw_eps: f64 = 1e-8;
    adamw_decay: f64 = 0.1;
    decay_final: f64 = 0.1;
}

/// A language-model pretraining experiment: what to train, on which data, how long, and what to record.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Experiment", extend("required" = ["model", "data"]))]
pub struct RawExperiment {
    /// Version of this format. There is one: 1.
    #[schemars(range(min = 1, max = 1))]
    pub version: u32,
    /// Names the run's folder: letters, digits, `.`, `_` and `-`. Default: the name of the file without its ending.
    pub name: Option<String>,
    /// Every random number of the run follows from it.
    pub seed: u64,
    /// Where to train. `auto` takes the GPU where there is one.
    pub device: DeviceChoice,
    /// The model: a preset, or its sizes, or both (the sizes win).
    pub model: Option<RawModel>,
    /// The text, its tokens and how rows are made of them.
    pub data: Option<RawData>,
    /// How many sequences one optimizer step sees.
    pub batch: RawBatch,
    /// How long to train.
    pub train: RawTrain,
    /// The optimizer and its settings.
    pub optimizer: RawOptimizer,
    /// The learning rate over the steps, as a factor of the optimizer's `lr`.
    pub schedule: RawSchedule,
    /// Arithmetic of matrix products and activations. Weights, gradients and the optimizer's state are 32-bit, unless
    /// `master_weights` is false.
    pub precision: Precision,
    /// Under `precision: bf16`: whether the rounded weights are copies of 32-bit ones. `false` trains as PyTorch trains a model
    /// that was cast to bfloat16: weights, gradients and the optimizer's state are bf16, updates are computed in 32 bits.
    pub master_weights: bool,
    /// How the work is divided among devices.
    pub parallel: RawParallel,
    /// What is measured while training.
    pub eval: RawEval,
    /// When checkpoints are written, and how many are kept.
    pub checkpoint: RawCheckpoint,
    /// How often progress is reported.
    pub log: RawLog,
}

impl Default for RawExperiment {
    fn default() -> Self {
        Self {
            version: 1,
            name: None,
            seed: 1337,
            device: DeviceChoice::Auto,
            model: None,
            data: None,
            batch: RawBatch::default(),
            train: RawTrain::default(),
            optimizer: RawOptimizer::default(),
            schedule: RawSchedule::default(),
            precision: Precision::Fp32,
            master_weights: true,
            parallel: RawParallel::default(),
            eval: RawEval::default(),
            checkpoint: RawCheckpoint::default(),
            log: RawLog { every: 10 },
        }
    }
}

/// A decoder-only transformer. Without a preset, `layers`, `heads`, `d_model` and `context_length` are needed.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Model")]
pub struct RawModel {
    /// Default: the preset's, else `gpt2`.
    pub family: Option<Family>,
    /// Sizes known by name; keys given beside it override them. gpt2-124m, gpt2-355m, gpt2-774m, gpt2-1558m, llama-179m,
    /// and small ones: gpt2-nano, gpt2-micro, gpt2-mini, llama-nano, llama-micro, llama-mini.
    pub preset: Option<String>,
    /// Default: the tokenizer's.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub vocab_size: Option<usize>,
    /// Rounds the vocabulary up to a multiple of this.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub pad_vocab_to: Option<usize>,
    /// The longest sequence that the model sees, in tokens.
    #[schemars(range(min = 1, max = 16_777_216))]
    pub context_length: Option<usize>,
    /// Transformer blocks.
    #[schemars(range(min = 1, max = 10_000))]
    pub layers: Option<usize>,
    /// Attention heads; they divide `d_model`.
    #[schemars(range(min = 1, max = 10_000))]
    pub heads: Option<usize>,
    /// Key and value heads of grouped-query attention (llama); they divide `heads`. Default: `heads`.
    #[schemars(range(min = 1, max = 10_000))]
    pub kv_heads: Option<usize>,
    /// Width of the residual stream.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub d_model: Option<usize>,
    /// Width of the feed-forward layer. Default: 4·d_model (gpt2), 8/3·d_model rounded up to a multiple of 256 (llama).
    #[schemars(range(min = 1, max = 10_000_000))]
    pub d_ff: Option<usize>,
    /// Embedding, attention and residual dropout (gpt2). Default: 0.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub dropout: Option<f64>,
    /// Whether the head shares the embedding's weights. Default: true (gpt2), false (llama).
    pub tie_embeddings: Option<bool>,
    /// Added to the variance in normalization layers. Default: 1e-5.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    pub norm_eps: Option<f64>,
    /// Base of the rotary position embedding (llama). Default: 10000.
    #[schemars(range(max = 1e12), extend("exclusiveMinimum" = 0))]
    pub rope_theta: Option<f64>,
    /// Where a layer's norms stand (gpt2): before attention and MLP, or behind their sums with the residual stream. Default: pre.
    pub norm: Option<NormPlace>,
    /// Of the feed-forward layer (gpt2). Default: gelu, its tanh form.
    pub activation: Option<Activation>,
    /// Position embeddings (gpt2): trained, or sines and cosines of fixed frequencies. Default: learned.
    pub positions: Option<PositionKind>,
    /// Whether token embeddings are multiplied by √d_model before positions are added (gpt2). Default: false.
    pub embedding_scale: Option<bool>,
    /// Whether the head has a bias (gpt2). Default: false.
    pub head_bias: Option<bool>,
    /// Whether a norm stands before the head (gpt2). Default: true.
    pub final_norm: Option<bool>,
    /// Dropout behind the activation of the feed-forward layer (gpt2). Default: 0.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub mlp_dropout: Option<f64>,
    /// The weights that training starts from. Default: normal(0, 0.02), GPT-2's residual projections scaled by
    /// 1/√(2·layers).
    pub init: Option<RawInit>,
}

/// Where initial weights come from.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[schemars(rename = "Init")]
pub enum RawInit {
    /// A Hugging Face folder of a GPT-2 or Llama, or a model file of llm.c. Its numbers fill this section.
    From(String),
    /// As PyTorch's own transformer layers start: Xavier-uniform attention, uniform within ±1/√in elsewhere (gpt2).
    Pytorch {
        /// Embedding and head are uniform within ± this.
        #[serde(default = "embedding_range")]
        #[schemars(range(max = 10), extend("exclusiveMinimum" = 0))]
        embedding: f64,
    },
}

/// The global batch of one optimizer step, and how much of it one forward pass takes.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Batch", extend("x-exclusive" = ["sequences", "tokens"]))]
pub struct RawBatch {
    /// Sequences per optimizer step. Default: 32. Or `tokens`.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub sequences: Option<usize>,
    /// Tokens per optimizer step, a multiple of the row length. Or `sequences`.
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub tokens: Option<usize>,
    /// Sequences per forward pass; gradients accumulate over sequences / replicas / micro_batch of them. Default: the
    /// largest divisor of sequences / replicas up to 8; under mode `pipeline` what `microbatches` makes it.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub micro_batch: Option<usize>,
}

/// How long to train: one of `steps`, `epochs` and `tokens`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Train", extend("x-exclusive" = ["steps", "epochs", "tokens"]))]
pub struct RawTrain {
    /// Optimizer steps. Default: 1000, unless `epochs` or `tokens` is given.
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub steps: Option<u64>,
    /// Passes over the training data.
    #[schemars(range(max = 1e9), extend("exclusiveMinimum" = 0))]
    pub epochs: Option<f64>,
    /// Tokens to train on.
    #[schemars(range(min = 1, max = 1_000_000_000_000_000_000u64))]
    pub tokens: Option<u64>,
    /// Global L2 norm to which gradients are clipped; `null` leaves them as they are.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub clip_norm: Option<f64>,
    /// What a layer computes again in its backward instead of keeping it: nothing, attention's part, or all but the layer's
    /// input. Less memory, more work, the same numbers.
    pub recompute: Recompute,
}

impl Default for RawTrain {
    fn default() -> Self {
        Self { steps: None, epochs: None, tokens: None, clip_norm: Some(1.0), recompute: Recompute::None }
    }
}

/// One optimizer.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[schemars(rename = "Optimizer")]
pub enum RawOptimizer {
    /// AdamW.
    Adamw {
        /// Peak learning rate.
        #[serde(default = "adamw_lr")]
        #[schemars(range(max = 10_000), extend("exclusiveMinimum" = 0))]
        lr: f64,
        /// Decay rates of the two moments, in [0, 1).
        #[serde(default = "adamw_betas")]
        betas: [f64; 2],
        /// Added to the denominator.
        #[serde(default = "adamw_eps")]
        #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
        eps: f64,
        /// Decoupled weight decay, scaled by the learning rate.
        #[serde(default = "adamw_decay")]
        #[schemars(range(min = 0, max = 10_000))]
        weight_decay: f64,
        /// What decays: tensors of two or more dimensions (`matrices`), or biases and gains too (`all`).
        #[serde(default)]
        decays: Decays,
    },
    /// Stochastic gradient descent.
    Sgd {
        /// Peak learning rate.
        #[schemars(range(max = 10_000), extend("exclusiveMinimum" = 0))]
        lr: f64,
        /// Share of the last update that is kept.
        #[serde(default)]
        #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
        momentum: f64,
    },
}

impl Default for RawOptimizer {
    fn default() -> Self {
        Self::Adamw {
            lr: adamw_lr(),
            betas: adamw_betas(),
            eps: adamw_eps(),
            weight_decay: adamw_decay(),
            decays: Decays::default(),
        }
    }
}

/// A warmup, then a decay.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Schedule")]
pub struct RawSchedule {
    /// The rise to the peak learning rate.
    pub warmup: RawWarmup,
    /// What follows the warmup. Default: constant.
    pub decay: RawDecay,
}

/// lr·(step+1)/steps; with `from`, linear from from·lr at step 0 to lr at step `steps`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Warmup")]
pub struct RawWarmup {
    /// Steps until the peak; 0 for no warmup.
    #[schemars(range(min = 0, max = 1_000_000_000_000u64))]
    pub steps: u64,
    /// Share of the peak learning rate to start from.
    #[schemars(range(min = 0, max = 1))]
    pub from: Option<f64>,
}

/// The shape of the decay.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[schemars(rename = "Decay")]
pub enum RawDecay {
    /// Half a cosine, constant afterwards.
    Cosine {
        /// Share of the peak learning rate that is reached.
        #[serde(rename = "final", default = "decay_final")]
        #[schemars(range(min = 0, max = 1))]
        final_: f64,
        /// Steps from the end of the warmup. Default: the rest of the run.
        #[serde(default)]
        #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
        steps: Option<u64>,
    },
    /// A straight line, constant afterwards.
    Linear {
        /// Share of the peak learning rate that is reached.
        #[serde(rename = "final", default = "decay_final")]
        #[schemars(range(min = 0, max = 1))]
        final_: f64,
        /// Steps from the end of the warmup. Default: the rest of the run.
        #[serde(default)]
        #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
        steps: Option<u64>,
    },
    /// Times `gamma` after each `every` steps, or each so many epochs.
    Step(RawStep),
    /// The peak learning rate to the end.
    Constant {},
}

/// Drops of the learning rate.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "StepDecay", extend("x-exclusive" = ["every", "epochs"]))]
pub struct RawStep {
    /// Steps between two drops. Or `epochs`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub every: Option<u64>,
    /// Epochs between two drops, counted in rows. Or `every`.
    #[serde(default)]
    #[schemars(range(max = 1e9), extend("exclusiveMinimum" = 0))]
    pub epochs: Option<f64>,
    /// Factor of one drop.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    pub gamma: f64,
}

impl Default for RawDecay {
    fn default() -> Self {
        Self::Constant {}
    }
}

/// Checkpoints of a run.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Checkpoint")]
pub struct RawCheckpoint {
    /// Optimizer steps between checkpoints; one follows the last step in any case.
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub every: u64,
    /// How many of the newest are kept; the best by validation loss is kept besides.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub keep: usize,
}

impl Default for RawCheckpoint {
    fn default() -> Self {
        Self { every: 500, keep: 3 }
    }
}

/// Progress lines.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Log")]
pub struct RawLog {
    /// Optimizer steps between progress lines; metrics are recorded for every step.
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub every: u64,
}

impl Default for RawLog {
    fn default() -> Self {
        Self { every: 10 }
    }
}
