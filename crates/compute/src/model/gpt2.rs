//! GPT-2 (Radford et al. 2019): learned positions, LayerNorm, biases, GELU; or the parts that its `Variant` has instead.

use candle_core::{Result, Tensor};

use super::blocks::Block;
use crate::kernels::embedding::sinusoids;
use crate::nn::parameter_index;
use crate::nn::{Attention, DropoutSite, Embedding, Head, Linear, Mlp, Norm, Positions, TransformerLayer};
use runner_spec::experiment::{PositionKind, Recompute};
use runner_spec::model::ModelSpec;
use runner_spec::model::layout::ParamLayout;

/// Block `index` of the model's list.
pub(super) fn block(spec: &ModelSpec, layout: &ParamLayout, index: usize, seed: u64, like: &Tensor) -> Result<Block> {
    let variant = &spec.variant;
    let parameter = |name: String| parameter_index(layout, &name);
    let dropout = |site: &str| DropoutSite::new(seed, &format!("{index}.{site}"), spec.dropout);
    let norm = |prefix: &str| -> Result<Norm> {
        let bias = Some(parameter(format!("{prefix}.bias"))?);
        Ok(Norm { weight: parameter(format!("{prefix}.weight"))?, bias, eps: spec.norm_eps })
    };
    if index == 0 {
        return Ok(Block::Embedding(Embedding {
            tokens: parameter("transformer.wte.weight".into())?,
            scale: variant.embedding_scale.then(|| (spec.d_model as f64).sqrt()),
            positions: match variant.positions {
                PositionKind::Learned => Positions::Learned(parameter("transformer.wpe.weight".into())?),
                PositionKind::Sinusoidal => Positions::Fixed(sinusoids(spec.context_length, spec.d_model, like)?),
            },
            dropout: dropout("embedding"),
        }));
    }
    if index == spec.layers + 1 {
        let name = if spec.tie_embeddings { "transformer.wte.weight" } else { "lm_head.weight" };
        let bias = variant.head_bias.then(|| parameter("lm_head.bias".into())).transpose()?;
        let project = Linear { weight: parameter(name.into())?, stacked: 1, bias };
        let norm = variant.final_norm.then(|| norm("transformer.ln_f")).transpose()?;
        return Ok(Block::Head(Head { norm, project }));
    }
    let p = format!("transformer.h.{}", index - 1);
    let linear = |name: &str| -> Result<Linear> {
        let bias = Some(parameter(format!("{p}.{name}.bias"))?);
        Ok(Linear { weight: parameter(format!("{p}.{name}.weight"))?, stacked: 1, bias })
    };
    Ok(Block::Layer(Box::new(TransformerLayer {
        place: variant.norm,
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
        mlp: Mlp::Plain {
            up: linear("mlp.c_fc")?,
            activation: variant.activation,
            dropout: DropoutSite::new(seed, &format!("{index}.mlp"), variant.mlp_dropout),
            down: linear("mlp.c_proj")?,
        },
        dropout: [dropout("attention.output"), dropout("mlp.output")],
        recompute: Recompute::None,
    })))
}
