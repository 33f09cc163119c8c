//! Self-attention and its projections.

use super::{Buffer, Linear, Mask, Names, buffer, statistic};
use crate::model::ModelSpec;
use crate::model::family::Family;
use crate::model::initial::ParamInit;

const QKV: Names =
    Names { gpt2: &["attn.c_attn"], llama: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"] };
const OUT: Names = Names { gpt2: &["attn.c_proj"], llama: &["self_attn.o_proj"] };

/// Rotary positions: pairs of a head's dimensions are turned by angles that grow with the position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotary {
    pub theta: f64,
    /// The longest row.
    pub context_length: usize,
}

/// An attention layer: the projections of queries, keys and values, the heads, and the projection of their outputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub mask: Mask,
    pub rotary: Option<Rotary>,
    /// Drops probabilities.
    pub dropout: f64,
    pub qkv: Linear,
    pub out: Linear,
}

impl Attention {
    pub(super) fn new(spec: &ModelSpec) -> Self {
        let (d, head_dim) = (spec.d_model, spec.head_dim());
        let (queries, keys) = (spec.heads * head_dim, spec.kv_heads * head_dim);
        let (init, defaults) = (ParamInit::matrix(spec, d), spec.family.defaults());
        let mut qkv = Linear::new(spec, &QKV, d, &[queries, keys, keys], [init, ParamInit::Zeros]);
        // PyTorch's `MultiheadAttention` has one matrix, too.
        if spec.options.pytorch_init.is_some() && qkv.names.len() == 1 {
            qkv.init = ParamInit::xavier(d, qkv.width());
        }
        Self {
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim,
            mask: spec.options.mask,
            rotary: defaults.rotary.then_some(Rotary { theta: spec.rope_theta, context_length: spec.context_length }),
            dropout: if defaults.dropout { spec.dropout } else { 0.0 },
            qkv,
            out: Linear::new(spec, &OUT, queries, &[d], [ParamInit::residual(spec, queries), ParamInit::Zeros]),
        }
    }

    /// The width of the heads' outputs.
    fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// FLOPs of scores and of their product with the values, for each position of rows of `length`. Every query counts as the one that sees
    /// most keys.
    pub fn score_flops(&self, length: usize) -> f64 {
        4.0 * self.width() as f64 * self.mask.most_keys(length) as f64
    }

    /// The tensors that its backward reads besides its input.
    pub(super) fn kept(&self) -> [Buffer; 3] {
        [
            buffer("query, key, value", self.qkv.width()),
            buffer("attention output", self.width()),
            statistic("attention log-sum-exp", self.heads),
        ]
    }

    /// The gradients that its backward holds at its peak.
    pub(super) fn held(&self) -> Buffer {
        buffer("gradients of query, key, value and attention", self.qkv.width() + self.width())
    }
}

/// A reason why numbers of heads do not fit the width or each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadMistake {
    /// The heads do not divide the width.
    Width,
    /// Rotary positions turn pairs of a head's dimensions, and a head's width is odd.
    OddWidth,
    /// The family does not share keys and values among heads.
    Grouped,
    /// The key-value heads do not divide the heads.
    Groups,
}

/// Checks numbers of heads, none of which is 0.
pub fn head_mistakes(family: Family, d_model: usize, heads: usize, kv_heads: usize) -> Vec<HeadMistake> {
    if !d_model.is_multiple_of(heads) {
        return vec![HeadMistake::Width];
    }
    let defaults = family.defaults();
    let checks = [
        (defaults.rotary && !(d_model / heads).is_multiple_of(2), HeadMistake::OddWidth),
        (!defaults.grouped_heads && kv_heads != heads, HeadMistake::Grouped),
        (defaults.grouped_heads && !heads.is_multiple_of(kv_heads), HeadMistake::Groups),
    ];
    checks.into_iter().filter(|(is_wrong, _)| *is_wrong).map(|(_, mistake)| mistake).collect()
}
