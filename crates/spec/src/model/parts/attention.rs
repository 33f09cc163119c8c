//! Self-attention and its projections.

use super::part::{Buffer, Linear, Part, buffer, masked, statistic};
use crate::model::family::Names;
use crate::model::heads::Heads;
use crate::model::initial::ParamInit;
use crate::model::mask::Mask;
use crate::model::spec::ModelSpec;

const QKV: Names =
    Names { gpt2: &["attn.c_attn"], llama: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"] };
const OUT: Names = Names { gpt2: &["attn.c_proj"], llama: &["self_attn.o_proj"] };

/// Rotary positions: pairs of a head's dimensions are turned by angles that grow with the position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotary {
    pub head_dim: usize,
    pub theta: f64,
    /// The longest row.
    pub context_length: usize,
}

/// An attention layer: the projections of queries, keys and values, the heads, and the projection of their outputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    pub heads: Heads,
    pub mask: Mask,
    pub rotary: Option<Rotary>,
    /// Drops probabilities.
    pub dropout: f64,
    pub qkv: Linear,
    pub out: Linear,
}

impl Attention {
    pub(super) fn new(spec: &ModelSpec) -> Self {
        let (d, heads) = (spec.d_model, spec.attention_heads());
        let (queries, keys) = (heads.out_width(), heads.kv * heads.width);
        let (init, defaults) = (ParamInit::matrix(spec, d), spec.family.defaults());
        let mut qkv = Linear::new(spec, &QKV, d, &[queries, keys, keys], [init, ParamInit::Zeros]);
        // PyTorch's `MultiheadAttention` has one matrix, too.
        if spec.options.pytorch_init.is_some() && qkv.names.len() == 1 {
            qkv.init = ParamInit::xavier(d, qkv.width());
        }
        Self {
            heads,
            mask: spec.options.mask,
            rotary: defaults.rotary.then_some(Rotary {
                head_dim: heads.width,
                theta: spec.rope_theta,
                context_length: spec.context_length,
            }),
            dropout: if defaults.dropout { spec.dropout } else { 0.0 },
            qkv,
            out: Linear::new(spec, &OUT, queries, &[d], [ParamInit::residual(spec, queries), ParamInit::Zeros]),
        }
    }

    /// Numbers that a cache holds of each token: its keys and values.
    pub fn cached(&self) -> usize {
        2 * self.heads.kv * self.heads.width
    }
}

impl Part for Attention {
    fn products(&self) -> Vec<&Linear> {
        vec![&self.qkv, &self.out]
    }

    fn kept(&self) -> Vec<Buffer> {
        vec![
            buffer("query, key, value", self.qkv.width()),
            buffer("attention output", self.heads.out_width()),
            statistic("attention log-sum-exp", self.heads.queries),
        ]
    }

    fn held(&self) -> Buffer {
        buffer("gradients of query, key, value and attention", self.qkv.width() + self.heads.out_width())
    }

    /// Those of the probabilities, which the backward draws in each of its two kernels.
    fn mask_elements(&self, length: usize) -> [f64; 2] {
        let scores = self.heads.queries as f64 * length as f64 * self.mask.relative_pairs(length) / 2.0;
        [1.0, 2.0].map(|times| times * masked(self.dropout, scores))
    }

    /// Those of scores and of their product with the values. Every query counts as the one that sees most keys.
    fn score_flops(&self, length: usize) -> f64 {
        4.0 * self.heads.out_width() as f64 * self.mask.most_keys(length) as f64
    }
}
