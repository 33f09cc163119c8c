//! Self-attention and its projections.

use super::norm::Norm;
use super::part::{Buffer, Linear, Part, PartParameter, Place, buffer, masked, statistic};
use super::sum::Sums;
use crate::model::family::Names;
use crate::model::heads::Heads;
use crate::model::initial::ParamInit;
use crate::model::mask::Mask;
use crate::model::options::{Biases, LayerOptions, QkNorm};
use crate::model::rope::Rotary;
use crate::model::spec::ModelSpec;

const QKV: Names =
    Names { gpt2: &["attn.c_attn"], llama: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"] };
const QK_NORMS: [Names; 2] = [
    Names { gpt2: &["attn.q_norm"], llama: &["self_attn.q_norm"] },
    Names { gpt2: &["attn.k_norm"], llama: &["self_attn.k_norm"] },
];
const OUT: Names = Names { gpt2: &["attn.c_proj"], llama: &["self_attn.o_proj"] };

/// An attention layer: the projections of queries, keys and values, the heads, and the projection of their outputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    pub heads: Heads,
    pub mask: Mask,
    /// Factor on scores.
    pub scale: f64,
    /// The norms of queries and of keys.
    pub qk_norm: Option<[Norm; 2]>,
    /// True if queries and keys are normed after the rotation.
    pub rotates_first: bool,
    pub rotary: Option<Rotary>,
    /// Drops probabilities.
    pub dropout: f64,
    pub qkv: Linear,
    /// What replaces the values.
    pub value: Sums,
    /// What replaces the outputs of the heads.
    pub attended: Sums,
    pub out: Linear,
}

impl Attention {
    /// The attention of layers that have `layer` instead of the model's own values.
    pub(super) fn new(spec: &ModelSpec, layer: &LayerOptions, value: Sums, attended: Sums) -> Self {
        let (d, heads, options) = (spec.d_model, spec.attention_heads(), &spec.options);
        let (queries, keys) = (heads.out_width(), heads.kv * heads.width);
        let (init, defaults) = (ParamInit::matrix(spec, d), spec.family.defaults());
        let mut qkv = Linear::new(spec, &QKV, d, &[queries, keys, keys], [init, ParamInit::Zeros], Biases::Qkv);
        // PyTorch's `MultiheadAttention` has one matrix, too.
        if options.pytorch_init.is_some() && qkv.names.len() == 1 {
            qkv.init = ParamInit::xavier(d, qkv.width());
        }
        let out_init = [ParamInit::residual(spec, queries), ParamInit::Zeros];
        Self {
            heads,
            mask: layer.window.or(options.window).map_or(options.mask, Mask::Window),
            scale: options.attention_scale.unwrap_or_else(|| 1.0 / (heads.width as f64).sqrt()),
            qk_norm: match options.qk_norm {
                QkNorm::None => None,
                QkNorm::Head | QkNorm::HeadAfterRope => Some([heads.width; 2]),
                QkNorm::Width => Some([queries, keys]),
            }
            .map(|widths| [0, 1].map(|i| Norm::rms(spec, &QK_NORMS[i], widths[i]))),
            rotates_first: options.qk_norm == QkNorm::HeadAfterRope,
            rotary: (defaults.rotary && layer.rope).then(|| Rotary {
                head_dim: heads.width,
                dims: rotated_dims(heads.width, options.rope_fraction),
                theta: layer.rope_theta.unwrap_or(spec.rope_theta),
                scaling: layer.rope_scaling.unwrap_or(options.rope_scaling),
                context_length: spec.context_length,
            }),
            dropout: if defaults.dropout { spec.dropout } else { 0.0 },
            qkv,
            value,
            attended,
            out: Linear::new(spec, &OUT, queries, &[d], out_init, Biases::Attention),
        }
    }

    /// Numbers that a cache holds of each token: its keys and values.
    pub fn cached(&self) -> usize {
        2 * self.heads.kv * self.heads.width
    }
}

/// The dimensions of a head of `width` that are rotated, an even number.
fn rotated_dims(width: usize, fraction: Option<f64>) -> usize {
    fraction.map_or(width, |fraction| (width as f64 * fraction) as usize / 2 * 2)
}

impl Part for Attention {
    fn parameters(&self, place: &Place) -> Vec<PartParameter> {
        let norms = self.qk_norm.iter().flatten().flat_map(|norm| norm.parameters(place));
        let own = self.products().into_iter().flat_map(|linear| linear.parameters(place)).chain(norms);
        own.collect()
    }

    fn gate_flops(&self) -> f64 {
        self.value.gate_flops() + self.attended.gate_flops()
    }

    fn products(&self) -> Vec<&Linear> {
        vec![&self.qkv, &self.out]
    }

    fn kept(&self) -> Vec<Buffer> {
        let mut kept = vec![
            buffer("query, key, value", self.qkv.width()),
            buffer("attention output", self.heads.out_width()),
            statistic("attention log-sum-exp", self.heads.queries),
        ];
        if let Some(norms) = &self.qk_norm {
            let widths = [self.heads.out_width(), self.heads.kv * self.heads.width];
            kept.push(buffer("queries before their norm", widths[0]));
            kept.push(buffer("keys before their norm", widths[1]));
            let rows = norms.iter().zip(widths).map(|(norm, width)| width / norm.width);
            kept.push(statistic("1/rms of queries and keys", rows.sum()));
        }
        kept.extend(self.value.kept());
        kept
    }

    fn held(&self) -> Buffer {
        // What replaces the heads' outputs is computed again; gates give a gradient of the input.
        let outputs = if self.attended.is_empty() { 1 } else { 2 };
        let gates = [&self.value, &self.attended].into_iter().filter(|sums| sums.gate_size() > 0).count();
        let width = self.qkv.width() + outputs * self.heads.out_width() + gates * self.qkv.inputs;
        buffer("gradients of query, key, value and attention", width)
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
