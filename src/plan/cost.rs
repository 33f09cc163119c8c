//! What a model costs in parameters and FLOPs, counted block by block so that any slice of the block list can be priced.

use std::ops::Range;

use crate::model::spec::{Activation, Family, ModelSpec, NormPlace, ParamSpec, parameters};
use crate::plan::program::Blocks;
use crate::plan::types::{Flops, ParamCounts};

/// Named with every figure, since MFU without it says little.
pub const CONVENTION: &str =
    "6·N + 12·L·d·T per token (nanoGPT, torchtitan): N without position and lookup-only embeddings, attention in full";

/// Parameters of the given blocks of the list (0 the embedding, 1 … layers, layers + 1 the head).
#[must_use]
pub fn count_params(spec: &ModelSpec, blocks: &Range<usize>) -> ParamCounts {
    let mut counts = ParamCounts { decayed_tensors: 0, decayed: 0, other_tensors: 0, other: 0, total: 0 };
    for param in parameters(spec).iter().filter(|p| blocks.contains(&p.block)) {
        let len = param.len() as u64;
        if param.decays() {
            counts.decayed_tensors += 1;
            counts.decayed += len;
        } else {
            counts.other_tensors += 1;
            counts.other += len;
        }
        counts.total += len;
    }
    counts
}

/// Parameters of the parts of the model that one rank holds. A tied embedding counts on both stages that hold it.
#[must_use]
pub fn count_chunks(spec: &ModelSpec, chunks: &[Blocks]) -> ParamCounts {
    let mut counts = ParamCounts { decayed_tensors: 0, decayed: 0, other_tensors: 0, other: 0, total: 0 };
    for chunk in chunks {
        let part = count_params(spec, &chunk.range());
        counts.decayed_tensors += part.decayed_tensors;
        counts.decayed += part.decayed;
        counts.other_tensors += part.other_tensors;
        counts.other += part.other;
        counts.total += part.total;
    }
    let holds = |block: usize| chunks.iter().any(|c| c.contains(block));
    if spec.tie_embeddings && holds(spec.layers + 1) && !holds(0) {
        let copy = (spec.vocab_size * spec.d_model) as u64;
        counts.decayed_tensors += 1;
        counts.decayed += copy;
        counts.total += copy;
    }
    counts
}

/// Parameters of each entry of the block list.
#[must_use]
pub fn block_params(spec: &ModelSpec) -> Vec<u64> {
    let mut out = vec![0; spec.block_count()];
    for param in parameters(spec) {
        out[param.block] += param.len() as u64;
    }
    out
}

/// An upper bound on the model's parameters that cannot overflow or allocate, to refuse absurd sizes by.
#[must_use]
pub fn param_bound(spec: &ModelSpec) -> f64 {
    let (d, ff) = (spec.d_model as f64, spec.d_ff as f64);
    let layer = 4.0 * d * d + 3.0 * d * ff + 10.0 * d + ff;
    ((2.0 * spec.vocab_size as f64 + spec.context_length as f64 + 2.0) * d)
        + spec.vocab_size as f64
        + spec.layers as f64 * layer
}

/// FLOPs of one optimizer step over `tokens` positions in rows of `length`, for the given blocks.
#[must_use]
pub fn flops(spec: &ModelSpec, blocks: &Range<usize>, tokens: u64, length: usize) -> Flops {
    let (tokens, length) = (tokens as f64, length as f64);
    let head = spec.layers + 1;
    // A head that is tied multiplies by the embedding's matrix, whose lookup costs nothing.
    let tied_head = spec.tie_embeddings && blocks.contains(&head);
    let tied_size = if tied_head { (spec.vocab_size * spec.d_model) as f64 } else { 0.0 };
    let (mut matmul, mut all) = (tied_size, tied_size);
    for param in parameters(spec).iter().filter(|p| blocks.contains(&p.block) && !is_lookup(p)) {
        let len = param.len() as f64;
        all += len;
        if param.decays() {
            matmul += len;
        }
    }
    let layers = blocks.clone().filter(|&b| b > 0 && b < head).count() as f64;
    // Scores and their product with the values: 2·T·d each per token and layer.
    let attention = 4.0 * layers * spec.d_model as f64 * length;
    let forward = tokens * (2.0 * matmul + attention);
    Flops {
        forward,
        // Each product of the forward has two in the backward: one for its input, one for its weight.
        backward: 2.0 * forward,
        step: tokens * (6.0 * all + 3.0 * attention),
        convention: CONVENTION.to_owned(),
    }
}

/// Embeddings are read by row: no matrix product. They are all that block 0 holds.
fn is_lookup(param: &ParamSpec) -> bool {
    param.block == 0
}

/// One activation that a layer keeps from forward to backward, or holds for a moment: elements per row of the micro-batch
/// (a row of the matrix: one position), in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    pub name: &'static str,
    pub per_position: usize,
    /// Activations are kept in the run's precision; statistics (means, log-sum-exps, logits) in f32 always.
    pub always_f32: bool,
}

fn buffer(name: &'static str, per_position: usize) -> Buffer {
    Buffer { name, per_position, always_f32: false }
}

fn statistic(name: &'static str, per_position: usize) -> Buffer {
    Buffer { name, per_position, always_f32: true }
}

/// What one layer keeps from its forward to its backward. Dropout masks are recomputed, not kept.
#[must_use]
pub fn layer_saved(s: &ModelSpec) -> Vec<Buffer> {
    let d = s.d_model;
    let (stats, mlp) = match s.family {
        Family::Gpt2 => {
            let activation = activation_name(s.variant.activation);
            ("mean and 1/std of both norms", [buffer("mlp.c_fc output", s.d_ff), buffer(activation, s.d_ff)])
        }
        Family::Llama => {
            ("1/rms of both norms", [buffer("gate and up projections", 2 * s.d_ff), buffer("swiglu", s.d_ff)])
        }
    };
    let per_norm = if s.family == Family::Gpt2 { 2 } else { 1 };
    // With norms behind the sums, the second sum is kept in the place of the second norm.
    let second = if s.variant.norm == NormPlace::Post { "second residual sum" } else { "second norm" };
    let mut out = vec![
        buffer("input", d),
        buffer("first norm", d),
        buffer("query, key, value", s.qkv_rows()),
        buffer("attention output", d),
        statistic("attention log-sum-exp", s.heads),
        buffer("first residual sum", d),
        buffer(second, d),
        statistic(stats, 2 * per_norm),
    ];
    out.extend(mlp);
    out
}

/// What the head keeps: the logits become their own gradient.
#[must_use]
pub fn head_saved(s: &ModelSpec) -> Vec<Buffer> {
    let per_norm = if s.family == Family::Gpt2 { 2 } else { 1 };
    let mut out = vec![buffer("head input", s.d_model)];
    if s.variant.final_norm {
        out.push(buffer("final norm", s.d_model));
        out.push(statistic("statistics of the final norm", per_norm));
    }
    out.push(statistic("logits", s.vocab_size));
    out
}

fn gradients_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Gelu => "gradients of gelu and mlp.c_fc",
        Activation::Relu => "gradients of relu and mlp.c_fc",
    }
}

fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Gelu => "gelu",
        Activation::Relu => "relu",
    }
}

/// The most that one layer's backward holds besides what is saved: the gradients that are alive in its widest operation.
#[must_use]
pub fn layer_transient(s: &ModelSpec) -> Vec<Buffer> {
    let d = s.d_model;
    let wide = match s.family {
        Family::Gpt2 => buffer(gradients_name(s.variant.activation), 2 * s.d_ff),
        Family::Llama => buffer("gradients of swiglu, gate and up", 3 * s.d_ff),
    };
    let mlp = wide.per_position;
    let attention = s.qkv_rows() + d;
    let widest =
        if mlp >= attention { wide } else { buffer("gradients of query, key, value and attention", attention) };
    vec![buffer("gradient of the residual stream and of the norm", 2 * d), widest]
}

/// As `layer_transient`, of the head: the logits' gradient is in the logits' own buffer.
#[must_use]
pub fn head_transient(s: &ModelSpec) -> Vec<Buffer> {
    if s.variant.final_norm {
        vec![buffer("gradients of the final norm and its input", 2 * s.d_model)]
    } else {
        vec![buffer("gradient of the head's input", s.d_model)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::{gpt2_124m, llama_179m};

    fn all(spec: &ModelSpec) -> Range<usize> {
        0..spec.block_count()
    }

    #[test]
    fn gpt2_124m_with_the_padded_vocabulary() {
        let spec = gpt2_124m(50_304);
        let counts = count_params(&spec, &all(&spec));
        assert_eq!((counts.decayed_tensors, counts.decayed), (50, 124_354_560));
        assert_eq!((counts.other_tensors, counts.other), (98, 121_344));
    }

    #[test]
    fn published_totals() {
        let gpt2 = gpt2_124m(50_257);
        assert_eq!(count_params(&gpt2, &all(&gpt2)).total, 124_439_808);
        let llama = llama_179m();
        assert_eq!(count_params(&llama, &all(&llama)).total, 179_448_576);
    }

    /// The language model of PyTorch's tutorial on pipelines and data parallelism; and one layer of it by hand:
    /// 4·d² + 4·d of attention, 2·d·ff + ff + d of the MLP, 4·d of the norms.
    #[test]
    fn the_encoder_of_a_billion_parameters() {
        let spec = crate::plan::tests::encoder(28_783, 8, 4096, 16);
        assert_eq!(count_params(&spec, &all(&spec)).total, 1_041_453_167);
        let (d, ff) = (4096, 4096);
        assert_eq!(count_params(&spec, &(1..2)).total, 4 * d * d + 4 * d + 2 * d * ff + ff + d + 4 * d);
        assert_eq!(count_params(&spec, &(0..1)).total, 28_783 * d, "sinusoids are no parameters");
        assert_eq!(count_params(&spec, &(9..10)).total, 28_783 * (d + 1));
        assert!(param_bound(&spec) >= 1_041_453_167.0);
    }

    #[test]
    fn blocks_add_up_to_the_model() {
        for spec in [gpt2_124m(50_304), llama_179m()] {
            let whole = count_params(&spec, &all(&spec));
            let cut = spec.layers / 2;
            let (front, back) = (count_params(&spec, &(0..cut)), count_params(&spec, &(cut..spec.block_count())));
            assert_eq!(front.total + back.total, whole.total);
            assert_eq!(front.decayed_tensors + back.decayed_tensors, whole.decayed_tensors);
            let price = |blocks| flops(&spec, &blocks, 1024, 256).step;
            let (sum, total) = (price(0..cut) + price(cut..spec.block_count()), price(all(&spec)));
            assert!((sum - total).abs() <= 1e-12 * total);
        }
    }

    /// By hand for GPT-2 124M at T = 1024: N = 124,475,904 - 1024·768 = 123,689,472, and 12·12·768·1024 = 113,246,208, so
    /// 6·N + that = 855,383,040 per token.
    #[test]
    fn the_convention_by_hand() {
        let spec = gpt2_124m(50_304);
        assert_eq!(flops(&spec, &all(&spec), 1, 1024).step, 855_383_040.0);
        // Llama, untied: the lookup table of 50,000·768 costs nothing, 6·(179,448,576 - 38,400,000) + 12·12·768·512.
        let llama = llama_179m();
        assert_eq!(flops(&llama, &all(&llama), 1, 512).step, 6.0 * 141_048_576.0 + 56_623_104.0);
    }

    /// The exact count of a model small enough to write every product down: 1 layer, d 4, ff 8, vocabulary 16, T 2.
    #[test]
    fn every_product_of_a_tiny_model() {
        let spec = ModelSpec { layers: 1, heads: 2, kv_heads: 2, d_model: 4, d_ff: 8, ..gpt2_124m(16) };
        let per_token = 2 * (4 * 12 + 4 * 4 + 4 * 8 + 8 * 4 + 4 * 16) + 2 * (2 * 2 * 4);
        let got = flops(&spec, &all(&spec), 6, 2);
        assert_eq!(got.forward, f64::from(6 * per_token));
        assert_eq!(got.backward, 2.0 * got.forward);
    }

    #[test]
    fn the_bound_bounds() {
        for spec in [gpt2_124m(50_257), llama_179m()] {
            let total = count_params(&spec, &all(&spec)).total as f64;
            assert!(param_bound(&spec) >= total && param_bound(&spec) < 2.0 * total);
        }
    }
}
