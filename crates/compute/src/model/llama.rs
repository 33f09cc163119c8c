//! Llama (Touvron et al. 2023): rotary positions, RMSNorm, no biases, SwiGLU, grouped key-value heads.

use candle_core::Result;

use super::blocks::Block;
use crate::kernels::pointwise::Rope;
use crate::nn::parameter_index;
use crate::nn::{Attention, DropoutSite, Embedding, Head, Linear, Mlp, Norm, Positions, TransformerLayer};
use runner_spec::experiment::{NormPlace, Recompute};
use runner_spec::model::ModelSpec;
use runner_spec::model::layout::ParamLayout;

/// Block `index` of the model's list.
pub(super) fn block(spec: &ModelSpec, layout: &ParamLayout, index: usize, seed: u64, rope: &Rope) -> Result<Block> {
    let no_dropout = DropoutSite::new(seed, "none", 0.0);
    let norm = |name: &str| -> Result<Norm> {
        Ok(Norm { weight: parameter_index(layout, name)?, bias: None, eps: spec.norm_eps })
    };
    if index == 0 {
        let tokens = parameter_index(layout, "model.embed_tokens.weight")?;
        return Ok(Block::Embedding(Embedding {
            tokens,
            scale: None,
            positions: Positions::None,
            dropout: no_dropout,
        }));
    }
    if index == spec.layers + 1 {
        let name = if spec.tie_embeddings { "model.embed_tokens.weight" } else { "lm_head.weight" };
        let project = Linear { weight: parameter_index(layout, name)?, stacked: 1, bias: None };
        return Ok(Block::Head(Head { norm: Some(norm("model.norm.weight")?), project }));
    }
    let p = format!("model.layers.{}", index - 1);
    // Query, key and value lie next to each other, and so do gate and up: see `spec::parameters`.
    let linear = |name: &str, stacked: usize| -> Result<Linear> {
        Ok(Linear { weight: parameter_index(layout, &format!("{p}.{name}.weight"))?, stacked, bias: None })
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
            dropout: no_dropout,
        },
        norm2: norm(&format!("{p}.post_attention_layernorm.weight"))?,
        mlp: Mlp::SwiGlu { gate_up: linear("mlp.gate_proj", 2)?, down: linear("mlp.down_proj", 1)? },
        dropout: [no_dropout, no_dropout],
        recompute: Recompute::None,
    })))
}
