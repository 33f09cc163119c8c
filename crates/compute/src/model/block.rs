//! The entries of a model's block list: embedding, layers, head.
//!
//! GPT-2 (Radford et al. 2019) has learned positions, LayerNorm, biases and GELU, or the parts that its `Gpt2Variant` names instead.
//! Llama (Touvron et al. 2023) has rotary positions, RMSNorm, no biases, SwiGLU, and grouped key-value heads.

use candle_core::{Result, Tensor};

use crate::kernels::embedding::sinusoids;
use crate::kernels::pointwise::Rope;
use crate::nn::head::HeadActivations;
use crate::nn::parameter_index;
use crate::nn::transformer::LayerActivations;
use crate::nn::{Attention, DropoutSite, Embedding, Head, Linear, Mlp, Norm, Positions, TransformerLayer};
use runner_spec::experiment::{Family, PositionKind, Recompute};
use runner_spec::model::ModelSpec;
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::stage::token_embedding;

/// One entry of the block list.
#[derive(Debug, Clone)]
pub enum Block {
    Embedding(Embedding),
    Layer(Box<TransformerLayer>),
    Head(Head),
}

/// The activations that one block's backward needs.
#[derive(Debug)]
pub enum SavedActivations {
    Embedding,
    Layer(Box<LayerActivations>),
    Head(HeadActivations),
}

impl Block {
    /// Block `index` of `spec`'s list, with dropout keyed by `seed`. `rope` is given for Llama; `like` gives element type and device of
    /// tables.
    ///
    /// # Errors
    /// If `layout` lacks a parameter.
    pub(super) fn new(
        spec: &ModelSpec,
        layout: &ParamLayout,
        index: usize,
        seed: u64,
        rope: Option<&Rope>,
        like: &Tensor,
    ) -> Result<Self> {
        let (variant, is_gpt2) = (&spec.variant, spec.family == Family::Gpt2);
        let either = |gpt2: &'static str, llama: &'static str| if is_gpt2 { gpt2 } else { llama };
        let parameter = |name: &str| parameter_index(layout, name);
        let weight = |prefix: &str| parameter(&format!("{prefix}.weight"));
        let bias = |prefix: &str| is_gpt2.then(|| parameter(&format!("{prefix}.bias"))).transpose();
        let norm = |prefix: &str| -> Result<Norm> {
            Ok(Norm { weight: weight(prefix)?, bias: bias(prefix)?, eps: spec.norm_eps })
        };
        let p = if is_gpt2 { spec.dropout } else { 0.0 };
        let dropout = |site: &str| DropoutSite::new(seed, &format!("{index}.{site}"), p);
        if index == 0 {
            let positions = match variant.positions {
                _ if !is_gpt2 => Positions::None,
                PositionKind::Learned => Positions::Learned(parameter("transformer.wpe.weight")?),
                PositionKind::Sinusoidal => Positions::Fixed(sinusoids(spec.context_length, spec.d_model, like)?),
            };
            return Ok(Self::Embedding(Embedding {
                tokens: parameter(token_embedding(spec.family))?,
                scale: variant.embedding_scale.then(|| (spec.d_model as f64).sqrt()),
                positions,
                dropout: dropout("embedding"),
            }));
        }
        if index == spec.layers + 1 {
            let name = if spec.tie_embeddings { token_embedding(spec.family) } else { "lm_head.weight" };
            let bias = variant.head_bias.then(|| parameter("lm_head.bias")).transpose()?;
            let norm = variant.final_norm.then(|| norm(either("transformer.ln_f", "model.norm"))).transpose()?;
            return Ok(Self::Head(Head { norm, project: Linear { weight: parameter(name)?, stacked: 1, bias } }));
        }
        let layer = format!("{}.{}", either("transformer.h", "model.layers"), index - 1);
        let norm = |gpt2, llama| norm(&format!("{layer}.{}", either(gpt2, llama)));
        // GPT-2 has one matrix where Llama has `stacked`, of which the first is named: they lie next to each other.
        let linear = |gpt2, llama, stacked: usize| -> Result<Linear> {
            let prefix = format!("{layer}.{}", either(gpt2, llama));
            Ok(Linear { weight: weight(&prefix)?, stacked: if is_gpt2 { 1 } else { stacked }, bias: bias(&prefix)? })
        };
        let up = linear("mlp.c_fc", "mlp.gate_proj", 2)?;
        let down = linear("mlp.c_proj", "mlp.down_proj", 1)?;
        let mlp = if is_gpt2 {
            let dropout = DropoutSite::new(seed, &format!("{index}.mlp"), variant.mlp_dropout);
            Mlp::Plain { up, activation: variant.activation, dropout, down }
        } else {
            Mlp::SwiGlu { gate_up: up, down }
        };
        Ok(Self::Layer(Box::new(TransformerLayer {
            norm_place: variant.norm,
            norm1: norm("ln_1", "input_layernorm")?,
            attention: Attention {
                qkv: linear("attn.c_attn", "self_attn.q_proj", 3)?,
                out: linear("attn.c_proj", "self_attn.o_proj", 1)?,
                heads: spec.heads,
                kv_heads: spec.kv_heads,
                head_dim: spec.head_dim(),
                causal: true,
                rope: rope.cloned(),
                dropout: dropout("attention"),
            },
            norm2: norm("ln_2", "post_attention_layernorm")?,
            mlp,
            dropout: [dropout("attention.output"), dropout("mlp.output")],
            recompute: Recompute::None,
        })))
    }
}
