//! Llama (Touvron et al. 2023): rotary positions, RMSNorm, no biases, SwiGLU, grouped key-value heads.

use std::ops::Range;

use candle_core::{Result, Tensor};

use super::blocks::Block;
use super::params::find_index;
use crate::kernels::pointwise::Rope;
use crate::nn::{Attention, Dropouts, Embedding, Head, Linear, Mlp, Norm, Positions, TransformerLayer};
use runner_spec::experiment::NormPlace;
use runner_spec::experiment::Recompute;
use runner_spec::model::ModelSpec;
use runner_spec::model::layout::ParamLayout;

/// Blocks `range` of the list.
pub fn blocks(
    spec: &ModelSpec,
    layout: &ParamLayout,
    range: Range<usize>,
    seed: u64,
    like: &Tensor,
) -> Result<Vec<Block>> {
    let rope = Rope::new(spec.context_length, spec.head_dim(), spec.rope_theta, like)?;
    range.map(|index| block(spec, layout, index, seed, &rope)).collect()
}

fn block(spec: &ModelSpec, layout: &ParamLayout, index: usize, seed: u64, rope: &Rope) -> Result<Block> {
    let none = Dropouts::new(seed, "none", 0.0);
    let norm = |name: &str| -> Result<Norm> { Ok(Norm::Rms { weight: find_index(layout, name)?, eps: spec.norm_eps }) };
    if index == 0 {
        let tokens = find_index(layout, "model.embed_tokens.weight")?;
        return Ok(Block::Embedding(Embedding { tokens, scale: None, positions: Positions::None, dropout: none }));
    }
    if index == spec.layers + 1 {
        let name = if spec.tie_embeddings { "model.embed_tokens.weight" } else { "lm_head.weight" };
        let project = Linear { weight: find_index(layout, name)?, stacked: 1, bias: None };
        return Ok(Block::Head(Head { norm: Some(norm("model.norm.weight")?), project }));
    }
    let p = format!("model.layers.{}", index - 1);
    // Query, key and value lie next to each other, and so do gate and up: see `spec::parameters`.
    let linear = |name: &str, stacked: usize| -> Result<Linear> {
        Ok(Linear { weight: find_index(layout, &format!("{p}.{name}.weight"))?, stacked, bias: None })
    };
    Ok(Block::Layer(Box::new(TransformerLayer {
        place: NormPlace::Pre,
        norm1: norm(&format!("{p}.input_layernorm.weight"))?,
        attention: Attention {
            qkv: linear("self_attn.q_proj", 3)?,
            out: linear("self_attn.o_proj", 1)?,
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim(),
            rope: Some(rope.clone()),
            dropout: none,
        },
        norm2: norm(&format!("{p}.post_attention_layernorm.weight"))?,
        mlp: Mlp::SwiGlu { gate_up: linear("mlp.gate_proj", 2)?, down: linear("mlp.down_proj", 1)? },
        dropout: [none, none],
        recompute: Recompute::None,
    })))
}
