//! The experiment file as written: every key, its default and its legal range, and nothing that depends on another key.
//!
//! These types, and those of `runner_spec::experiment` in them, define the format. An editor shows their doc comments, and their
//! attributes become the JSON Schema that files are checked against. `resolve` checks rules about several keys.

pub(crate) mod data;
pub(crate) mod parallel;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::raw::data::RawData;
use crate::raw::parallel::RawParallel;
use runner_spec::experiment::{
    Activation, AutoOr, BatchWarmup, Checkpoint, DeviceChoice, Eval, Family, Log, NormPlace, Optimizer, PositionKind,
    Precision, Schedule, Seeds, Train, WeightInit,
};
use runner_spec::model::values::{NamedValues, Sums};
use runner_spec::model::{Biases, LayerOptions, NormGain, QkNorm, RopeScaling};

/// A language-model pretraining experiment: what to train, on which data, how long, and what to record.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Experiment", extend("required" = ["model", "data"]))]
pub(crate) struct RawExperiment {
    /// Version of this format; the only one is 1.
    #[serde(default = "version")]
    #[schemars(range(min = 1, max = 1))]
    pub(crate) version: u32,
    /// Files below this one, the lowest first: a path, or a mapping from a key to the path of a file with its value, or a list of both. Settings
    /// of this file replace theirs, as `--set` does. `name` is not taken from them. Paths are relative to this file's folder.
    #[schemars(schema_with = "extends_schema")]
    pub(crate) extends: Option<Value>,
    /// Names the run's folder: letters, digits, `.`, `_` and `-`. Default: the name of the file without its ending.
    pub(crate) name: Option<String>,
    /// All random numbers of the run are derived from it. A mapping `{data, init, dropout}` gives the order of the training rows, the initial
    /// weights and the dropout masks separate seeds.
    pub(crate) seed: Seeds,
    /// Makes a group of runs that differ in their seed alone: their number (with the seeds 1, 2, …), or a list of seeds. Instead of `seed`.
    #[schemars(schema_with = "seed_list_schema")]
    pub(crate) seeds: Option<SeedList>,
    /// The device to train on. `auto` uses the GPU if there is one.
    pub(crate) device: DeviceChoice,
    /// The model: a preset, or its sizes, or both (the sizes win).
    pub(crate) model: Option<RawModel>,
    /// The text, its tokens and how rows are made of them.
    pub(crate) data: Option<RawData>,
    /// The sequences of one optimizer step.
    pub(crate) batch: RawBatch,
    /// The length of the training.
    pub(crate) train: Train,
    /// The optimizer and its settings.
    pub(crate) optimizer: Optimizer,
    /// The learning rate over the steps, as a factor of the optimizer's `lr`.
    pub(crate) schedule: Schedule,
    /// Arithmetic of matrix products and activations. Weights, gradients and the optimizer's state are 32-bit, unless
    /// `master_weights` is false.
    pub(crate) precision: Precision,
    /// True if the bf16 weights of `precision: bf16` are copies of 32-bit ones. `false` trains as PyTorch trains a model
    /// that was cast to bfloat16: weights, gradients and the optimizer's state take 2 bytes a number, each micro-batch's gradients are
    /// rounded when they are added, and updates are computed in 32 bits.
    #[serde(default = "runner_spec::serde_defaults::yes")]
    pub(crate) master_weights: bool,
    /// The division of the work among devices.
    pub(crate) parallel: RawParallel,
    /// The measurements while training.
    pub(crate) eval: Eval,
    /// The interval of checkpoints, and how many are kept.
    pub(crate) checkpoint: Checkpoint,
    /// The interval of progress reports, and programs that show the run while it trains.
    pub(crate) log: Log,
}

fn version() -> u32 {
    1
}

fn extends_schema(_: &mut SchemaGenerator) -> Schema {
    let one = json!([{"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}]);
    json_schema!({"anyOf": [one[0], one[1], {"type": "array", "items": {"anyOf": one}}]})
}

/// The seeds of a group of runs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum SeedList {
    Count(u64),
    Seeds(Vec<u64>),
}

/// The most seeds of a group.
const MAX_SEEDS: u64 = 1000;

fn seed_list_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"anyOf": [
        {"type": "integer", "minimum": 1, "maximum": MAX_SEEDS},
        {"type": "array", "minItems": 1, "maxItems": MAX_SEEDS, "uniqueItems": true, "items": {"type": "integer", "minimum": 0}}
    ]})
}

/// A decoder-only transformer. Without a preset, `layers`, `heads`, `d_model` and `context_length` are needed.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Model")]
pub(crate) struct RawModel {
    /// Default: the preset's, else `gpt2`.
    pub(crate) family: Option<Family>,
    /// A named set of sizes and options; other keys of `model` override them. gpt2-124m, gpt2-355m, gpt2-774m, gpt2-1558m, llama-179m,
    /// llama-3.2-1b, llama-3.1-8b, mistral-7b, qwen2.5-0.5b, qwen3-0.6b, gemma3-1b, olmo2-1b, olmo3-7b, smollm3-3b, and small ones:
    /// gpt2-nano, gpt2-micro, gpt2-mini, llama-nano, llama-micro, llama-mini, qwen2-nano, qwen3-nano, gemma3-nano, mistral-nano,
    /// olmo2-nano, olmo3-nano, smollm3-nano.
    pub(crate) preset: Option<String>,
    /// Default: the tokenizer's.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub(crate) vocab_size: Option<usize>,
    /// Rounds the vocabulary up to a multiple of this.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(crate) pad_vocab_to: Option<usize>,
    /// The longest sequence that the model sees, in tokens.
    #[schemars(range(min = 1, max = 16_777_216))]
    pub(crate) context_length: Option<usize>,
    /// Transformer blocks.
    #[schemars(range(min = 1, max = 10_000))]
    pub(crate) layers: Option<usize>,
    /// Attention heads; their number divides `d_model`, unless `head_dim` is given.
    #[schemars(range(min = 1, max = 10_000))]
    pub(crate) heads: Option<usize>,
    /// Key and value heads of grouped-query attention (llama); they divide `heads`. Default: `heads`.
    #[schemars(range(min = 1, max = 10_000))]
    pub(crate) kv_heads: Option<usize>,
    /// Width of the residual stream.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(crate) d_model: Option<usize>,
    /// Width of the feed-forward layer. Default: 4·d_model (gpt2), 8/3·d_model rounded up to a multiple of 256 (llama).
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(crate) d_ff: Option<usize>,
    /// Embedding, attention and residual dropout (gpt2). Default: 0.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub(crate) dropout: Option<f64>,
    /// True if the head shares the embedding's weights. Default: true (gpt2), false (llama).
    pub(crate) tie_embeddings: Option<bool>,
    /// Added to the variance in normalization layers. Default: 1e-5.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    pub(crate) norm_eps: Option<f64>,
    /// Base of the rotary position embedding (llama). Default: 10000.
    #[schemars(range(max = 1e12), extend("exclusiveMinimum" = 0))]
    pub(crate) rope_theta: Option<f64>,
    /// The place of a layer's norms, where f is attention or the MLP. pre: x + f(norm(x)). post: norm(x + f(x)). output: x + norm(f(x)), as
    /// OLMo 2. both: x + norm(f(norm(x))), as Gemma 3. Default: pre.
    pub(crate) norm: Option<NormPlace>,
    /// The gain of norms: `weight`, trained from 1; `one_plus_weight`, 1 + a vector that is trained from 0, as Gemma; or `none`, also
    /// without a bias. Default: weight.
    pub(crate) norm_gain: Option<NormGain>,
    /// The activation of the feed-forward layer. gelu is its tanh form. Default: gelu (gpt2), silu (llama).
    pub(crate) activation: Option<Activation>,
    /// True for a feed-forward layer with a gate: the activation of one product times another product (SwiGLU with silu, GeGLU with gelu).
    /// Default: false (gpt2), true (llama).
    pub(crate) gated: Option<bool>,
    /// Which matrix products of layers have biases: `none`, `qkv` (queries, keys and values, as Qwen 2), `attention`, or `all`. With `none`,
    /// LayerNorms have no biases either. Default: all (gpt2), none (llama).
    pub(crate) biases: Option<Biases>,
    /// Position embeddings (gpt2): learned, or sines and cosines of fixed frequencies. Default: learned.
    pub(crate) positions: Option<PositionKind>,
    /// True to multiply token embeddings by √d_model before positions are added. Default: false.
    pub(crate) embedding_scale: Option<bool>,
    /// True for a bias in the head (gpt2). Default: false.
    pub(crate) head_bias: Option<bool>,
    /// True for a norm before the head (gpt2). Default: true.
    pub(crate) final_norm: Option<bool>,
    /// Dropout after the activation of the feed-forward layer (gpt2). Default: 0.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub(crate) mlp_dropout: Option<f64>,
    /// False if attention sees the whole row, including the tokens to predict, as in an encoder. Such a model has no samples and no
    /// multiple choice. Default: true.
    pub(crate) causal: Option<bool>,
    /// Elements of an attention head. Default: d_model / heads.
    #[schemars(range(min = 1, max = 100_000))]
    pub(crate) head_dim: Option<usize>,
    /// RMSNorm of queries and keys: over each `head`, before the rotation, as Qwen 3 and Gemma 3; `head_after_rope`; or over the whole
    /// `width`, all heads together, as OLMo 2. Default: none.
    pub(crate) qk_norm: Option<QkNorm>,
    /// Factor on attention's scores. Default: 1/√head_dim.
    #[schemars(range(max = 1000), extend("exclusiveMinimum" = 0))]
    pub(crate) attention_scale: Option<f64>,
    /// Sliding-window attention: a query sees at most this many keys, its own and those before it. Default: all.
    #[schemars(range(min = 1, max = 16_777_216))]
    pub(crate) window: Option<u32>,
    /// A change of rotary frequencies for longer rows (llama). Default: `{none: {}}`.
    pub(crate) rope_scaling: Option<RopeScaling>,
    /// The part of a head's dimensions that is rotated, the first ones (llama). Default: 1.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    pub(crate) rope_fraction: Option<f64>,
    /// Logits z become c·tanh(z/c) with this c. Default: null, no cap.
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0))]
    pub(crate) logit_softcap: Option<f64>,
    /// Adds z·log²Σexp(logits) to the training loss, with z this number, which keeps logits small (OLMo: 1e-5). Reported losses do not contain it.
    /// Default: 0.
    #[schemars(range(min = 0, max = 1))]
    pub(crate) z_loss: Option<f64>,
    /// True for a norm of the embedding, after positions and before dropout, of the kind that the layers have. Default: false.
    pub(crate) embedding_norm: Option<bool>,
    /// Layers that differ: a list of layers from the first one on, which is repeated. Each entry has what its layers have instead of the
    /// model's own values. Gemma 3, with `rope_theta: 1000000`: `[{layers: 5, window: 512, rope_theta: 10000}, {}]`. Default: all layers are alike.
    #[schemars(length(max = 10_000))]
    pub(crate) pattern: Option<Vec<LayerOptions>>,
    /// Tensors and coefficients that `sums` name. The parameters of a trained value have its name. Default: none.
    pub(crate) values: Option<NamedValues>,
    /// Sums that replace tensors at five places, each a list of equations: `{layer: ["resid * x + mix * first"]}`. Default: null, none.
    pub(crate) sums: Option<Sums>,
    /// The weights that training starts from. Default: normal(0, 0.02), GPT-2's residual projections scaled by
    /// 1/√(2·layers).
    pub(crate) init: Option<WeightInit>,
}

/// The global batch of one optimizer step, and the part of it in one forward pass.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Batch", extend("x-exclusive" = ["sequences", "tokens"]))]
pub(crate) struct RawBatch {
    /// Sequences per optimizer step. Default: 32. Or `tokens`.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub(crate) sequences: Option<usize>,
    /// Tokens per optimizer step, a multiple of the row length. Or `sequences`.
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub(crate) tokens: Option<usize>,
    /// Sequences per forward pass; gradients accumulate over sequences / replicas / micro_batch of them, the last of which may be
    /// smaller. `auto`: the largest divisor that fits the memory, which the plan finds. Default: the largest divisor of sequences / replicas
    /// up to 8; in mode `pipeline`, sequences / replicas / microbatches, rounded up.
    #[schemars(schema_with = "micro_batch")]
    pub(crate) micro_batch: Option<AutoOr<usize>>,
    /// A batch that grows at the start of the training.
    pub(crate) warmup: Option<BatchWarmup>,
}

fn micro_batch(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"anyOf": [
        {"type": "string", "enum": ["auto"]},
        {"type": "integer", "format": "uint", "minimum": 1, "maximum": 1_000_000_000}
    ]})
}
