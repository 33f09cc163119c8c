//! GPT-2 (Radford et al. 2019): learned positions, LayerNorm, biases, GELU.

use std::ops::Range;

use candle_core::Result;

use super::blocks::Block;
use super::params::ParamLayout;
use super::spec::ModelSpec;
use crate::nn::{Attention, Dropouts, Embedding, Head, Linear, Mlp, Norm, TransformerLayer};

/// Blocks `range` of the list.
pub fn blocks(spec: &ModelSpec, layout: &ParamLayout, range: Range<usize>, seed: u64) -> Result<Vec<Block>> {
    range.map(|index| block(spec, layout, index, seed)).collect()
}

fn block(spec: &ModelSpec, layout: &ParamLayout, index: usize, seed: u64) -> Result<Block> {
    let at = |name: String| layout.index(&name);
    let dropout = |site: &str| Dropouts::new(seed, &format!("{index}.{site}"), spec.dropout);
    let norm = |prefix: &str| -> Result<Norm> {
        Ok(Norm::Layer {
            weight: at(format!("{prefix}.weight"))?,
            bias: at(format!("{prefix}.bias"))?,
            eps: spec.norm_eps,
        })
    };
    if index == 0 {
        return Ok(Block::Embedding(Embedding {
            tokens: at("transformer.wte.weight".into())?,
            positions: Some(at("transformer.wpe.weight".into())?),
            dropout: dropout("embedding"),
        }));
    }
    if index == spec.layers + 1 {
        let name = if spec.tie_embeddings { "transformer.wte.weight" } else { "lm_head.weight" };
        let project = Linear { weight: at(name.into())?, stacked: 1, bias: None };
        return Ok(Block::Head(Head { norm: norm("transformer.ln_f")?, project }));
    }
    let p = format!("transformer.h.{}", index - 1);
    let linear = |name: &str| -> Result<Linear> {
        Ok(Linear {
            weight: at(format!("{p}.{name}.weight"))?,
            stacked: 1,
            bias: Some(at(format!("{p}.{name}.bias"))?),
        })
    };
    Ok(Block::Layer(Box::new(TransformerLayer {
        norm1: norm(&format!("{p}.ln_1"))?,
        attention: Attention {
            qkv: linear("attn.c_attn")?,
            out: linear("attn.c_proj")?,
            heads: spec.heads,
            kv_heads: spec.heads,
            head_dim: spec.head_dim(),
            rope: None,
            dropout: dropout("attention"),
        },
        norm2: norm(&format!("{p}.ln_2"))?,
        mlp: Mlp::Gelu { up: linear("mlp.c_fc")?, down: linear("mlp.c_proj")? },
        dropout: [dropout("attention.output"), dropout("mlp.output")],
    })))
}
