//! The shape of a model, and its parameters with their names, shapes and initialization.
//!
//! The planner counts them, and the executor allocates them.

pub mod layout;
pub mod stage;
pub mod variant;

use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use crate::experiment::{Activation, Family, NormPlace, PositionKind, PytorchEmbedding};
pub use crate::model::variant::Gpt2Variant;
use crate::serde_defaults::is_default;

/// The base of rotary frequencies where a file gives none.
pub const DEFAULT_ROPE_THETA: f64 = 10_000.0;

/// A decoder-only transformer. Sizes are counts of elements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    pub family: Family,
    /// Rows of the embedding, padding included.
    pub vocab_size: usize,
    pub context_length: usize,
    pub layers: usize,
    pub heads: usize,
    /// Equal to `heads` for GPT-2.
    pub kv_heads: usize,
    pub d_model: usize,
    pub d_ff: usize,
    pub dropout: f64,
    pub tie_embeddings: bool,
    pub norm_eps: f64,
    pub rope_theta: f64,
    /// Differences from GPT-2, for the gpt2 family only.
    #[serde(default, skip_serializing_if = "is_default")]
    pub variant: Gpt2Variant,
}

impl ModelSpec {
    /// Width of one attention head.
    pub fn head_dim(&self) -> usize {
        self.d_model / self.heads
    }

    /// Output rows of the query, key and value projections together.
    pub fn qkv_rows(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim()
    }

    /// The number of layers among `blocks`, a part of the block list.
    pub fn layers_in(&self, blocks: Range<usize>) -> usize {
        blocks.end.min(self.layers + 1).saturating_sub(blocks.start.max(1))
    }

    /// The entries of the block list: embedding, layers, head.
    pub fn block_count(&self) -> usize {
        self.layers + 2
    }
}

/// The initial values of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParamInit {
    /// All 0.
    Zeros,
    /// All 1.
    Ones,
    /// Drawn from the normal distribution with mean 0.
    Normal { std: f64 },
    /// Drawn uniformly within ± `bound`.
    Uniform { bound: f64 },
}

/// One parameter of a model, under its Hugging Face name. Matrices are [out, in].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParamSpec {
    pub name: String,
    pub shape: Vec<usize>,
    pub init: ParamInit,
    /// The entry of the block list that owns it.
    pub block: usize,
}

impl ParamSpec {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True for tensors of two or more dimensions. Weight decay applies to them alone, except under `Decays::All`.
    pub fn decays(&self) -> bool {
        self.shape.len() >= 2
    }
}

/// The standard deviation of initial weights in GPT-2 and Llama.
const STD: f64 = 0.02;

/// The parameters of `spec` in registration order. A tied head has none of its own.
pub fn parameters(spec: &ModelSpec) -> Vec<ParamSpec> {
    let mut out = match spec.family {
        Family::Gpt2 => gpt2(spec),
        Family::Llama => llama(spec),
    };
    if let Some(embedding) = spec.variant.pytorch_init {
        for param in &mut out {
            param.init = pytorch_init(param, spec, embedding);
        }
    }
    out
}

fn normal(name: String, shape: [usize; 2], std: f64, block: usize) -> ParamSpec {
    ParamSpec { name, shape: shape.to_vec(), init: ParamInit::Normal { std }, block }
}

/// GPT-2 (Radford et al. 2019): normal(0, 0.02), residual projections scaled by 1/sqrt(2·layers). Under `norm: post`, `ln_1`
/// is the norm after attention, and `ln_2` the one after the MLP.
fn gpt2(s: &ModelSpec) -> Vec<ParamSpec> {
    let residual = STD / (2.0 * s.layers as f64).sqrt();
    let (d, variant) = (s.d_model, &s.variant);
    let mut out = vec![normal("transformer.wte.weight".into(), [s.vocab_size, d], STD, 0)];
    if variant.positions == PositionKind::Learned {
        out.push(normal("transformer.wpe.weight".into(), [s.context_length, d], STD, 0));
    }
    let vector =
        |name: String, len: usize, init: ParamInit, block: usize| ParamSpec { name, shape: vec![len], init, block };
    for i in 0..s.layers {
        let b = i + 1;
        let p = format!("transformer.h.{i}");
        out.extend([
            vector(format!("{p}.ln_1.weight"), d, ParamInit::Ones, b),
            vector(format!("{p}.ln_1.bias"), d, ParamInit::Zeros, b),
            normal(format!("{p}.attn.c_attn.weight"), [s.qkv_rows(), d], STD, b),
            vector(format!("{p}.attn.c_attn.bias"), s.qkv_rows(), ParamInit::Zeros, b),
            normal(format!("{p}.attn.c_proj.weight"), [d, d], residual, b),
            vector(format!("{p}.attn.c_proj.bias"), d, ParamInit::Zeros, b),
            vector(format!("{p}.ln_2.weight"), d, ParamInit::Ones, b),
            vector(format!("{p}.ln_2.bias"), d, ParamInit::Zeros, b),
            normal(format!("{p}.mlp.c_fc.weight"), [s.d_ff, d], STD, b),
            vector(format!("{p}.mlp.c_fc.bias"), s.d_ff, ParamInit::Zeros, b),
            normal(format!("{p}.mlp.c_proj.weight"), [d, s.d_ff], residual, b),
            vector(format!("{p}.mlp.c_proj.bias"), d, ParamInit::Zeros, b),
        ]);
    }
    let head = s.layers + 1;
    if variant.final_norm {
        out.push(vector("transformer.ln_f.weight".into(), d, ParamInit::Ones, head));
        out.push(vector("transformer.ln_f.bias".into(), d, ParamInit::Zeros, head));
    }
    if !s.tie_embeddings {
        out.push(normal("lm_head.weight".into(), [s.vocab_size, d], STD, head));
    }
    if variant.head_bias {
        out.push(vector("lm_head.bias".into(), s.vocab_size, ParamInit::Zeros, head));
    }
    out
}

/// The initial values of PyTorch's modules. A matrix of `nn.Linear` and its bias are uniform within ± 1/√in. In the family gpt2 a layer is
/// PyTorch's `TransformerEncoderLayer`: query, key and value are one Xavier-uniform matrix, and attention's biases are 0. `embedding` says
/// how embeddings and head start: in PyTorch's tutorials the head's bias is 0, and `nn.Linear` draws it. Norms start as in GPT-2.
fn pytorch_init(param: &ParamSpec, s: &ModelSpec, embedding: PytorchEmbedding) -> ParamInit {
    let uniform = |bound: f64| ParamInit::Uniform { bound };
    let inputs = |n: usize| uniform(1.0 / (n as f64).sqrt());
    let layer = param.name.split_once(".h.").or_else(|| param.name.split_once(".layers."));
    let part = layer.and_then(|(_, name)| Some(name.split_once('.')?.1));
    match (part.unwrap_or(&param.name), embedding) {
        ("attn.c_attn.weight", _) => uniform((6.0 / (s.qkv_rows() + s.d_model) as f64).sqrt()),
        ("attn.c_proj.weight" | "mlp.c_fc.weight" | "mlp.c_fc.bias", _)
        | ("lm_head.weight" | "lm_head.bias", PytorchEmbedding::Normal) => inputs(s.d_model),
        ("mlp.c_proj.weight" | "mlp.c_proj.bias" | "mlp.down_proj.weight", _) => inputs(s.d_ff),
        ("transformer.wte.weight" | "transformer.wpe.weight" | "model.embed_tokens.weight", embedding) => {
            match embedding {
                PytorchEmbedding::Uniform(bound) => uniform(bound),
                PytorchEmbedding::Normal => ParamInit::Normal { std: 1.0 },
            }
        }
        ("lm_head.weight", PytorchEmbedding::Uniform(bound)) => uniform(bound),
        (name, _) if s.family == Family::Llama && name.ends_with("_proj.weight") => inputs(s.d_model),
        _ => param.init,
    }
}

/// Llama (Touvron et al. 2023) with `transformers`' initialization: normal(0, 0.02) in every matrix. Query, key and value
/// matrices follow one another, and so do gate and up: flat storage makes each group one matrix.
fn llama(s: &ModelSpec) -> Vec<ParamSpec> {
    let (d, kv) = (s.d_model, s.kv_heads * s.head_dim());
    let ones = |name: String, block: usize| ParamSpec { name, shape: vec![d], init: ParamInit::Ones, block };
    let mut out = vec![normal("model.embed_tokens.weight".into(), [s.vocab_size, d], STD, 0)];
    for i in 0..s.layers {
        let b = i + 1;
        let p = format!("model.layers.{i}");
        out.extend([
            ones(format!("{p}.input_layernorm.weight"), b),
            normal(format!("{p}.self_attn.q_proj.weight"), [d, d], STD, b),
            normal(format!("{p}.self_attn.k_proj.weight"), [kv, d], STD, b),
            normal(format!("{p}.self_attn.v_proj.weight"), [kv, d], STD, b),
            normal(format!("{p}.self_attn.o_proj.weight"), [d, d], STD, b),
            ones(format!("{p}.post_attention_layernorm.weight"), b),
            normal(format!("{p}.mlp.gate_proj.weight"), [s.d_ff, d], STD, b),
            normal(format!("{p}.mlp.up_proj.weight"), [s.d_ff, d], STD, b),
            normal(format!("{p}.mlp.down_proj.weight"), [d, s.d_ff], STD, b),
        ]);
    }
    let head = s.layers + 1;
    out.push(ones("model.norm.weight".into(), head));
    if !s.tie_embeddings {
        out.push(normal("lm_head.weight".into(), [s.vocab_size, d], STD, head));
    }
    out
}

/// A source of initial values that are not drawn.
pub trait InitialWeights {
    /// Writes the initial values of `parameter` into `values`. Leaves the drawn values where the source has none.
    ///
    /// # Errors
    /// If the source cannot be read, or has the parameter in another shape.
    fn fill(&self, parameter: &ParamSpec, values: &mut [f32]) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}
