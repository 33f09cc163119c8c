//! The costs of a model in parameters and FLOPs, counted block by block so that any slice of the block list can be priced.

use std::ops::Range;

use runner_spec::experiment::{Activation, Family, NormPlace, Recompute};
use runner_spec::model::stage::stage_parameters;
use runner_spec::model::{ModelSpec, parameters};
use runner_spec::plan::{Flops, ParamCounts};
use runner_spec::program::BlockRange;

/// The convention by which the FLOPs of MFU are counted. The text stands beside every figure, because MFU cannot be compared without it.
pub(crate) const CONVENTION: &str =
    "6·N + 12·L·d·T per token (nanoGPT, torchtitan): N without position and lookup-only embeddings, attention in full";

/// Parameters of the parts of the model that one rank holds. A tied embedding counts on both stages that hold it.
pub(crate) fn count_chunks(spec: &ModelSpec, chunks: &[BlockRange]) -> ParamCounts {
    let chunks: Vec<Range<usize>> = chunks.iter().map(|chunk| chunk.range()).collect();
    let mut counts = ParamCounts::default();
    for param in stage_parameters(spec, &chunks) {
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

/// Parameters of each entry of the block list.
pub(crate) fn block_params(spec: &ModelSpec) -> Vec<u64> {
    let mut out = vec![0; spec.block_count()];
    for param in parameters(spec) {
        out[param.block] += param.len() as u64;
    }
    out
}

/// An upper bound on the model's parameters that cannot overflow or allocate, to refuse absurd sizes by.
pub(crate) fn param_bound(spec: &ModelSpec) -> f64 {
    let (d, ff) = (spec.d_model as f64, spec.d_ff as f64);
    let layer = 4.0 * d * d + 3.0 * d * ff + 10.0 * d + ff;
    ((2.0 * spec.vocab_size as f64 + spec.context_length as f64 + 2.0) * d)
        + spec.vocab_size as f64
        + spec.layers as f64 * layer
}

/// FLOPs of one optimizer step over `tokens` positions in rows of `length`, for the given blocks.
pub(crate) fn flops(spec: &ModelSpec, blocks: &Range<usize>, tokens: u64, length: usize) -> Flops {
    let (tokens, length) = (tokens as f64, length as f64);
    let head = spec.layers + 1;
    // A head that is tied multiplies by the embedding's matrix, whose lookup costs nothing.
    let tied_head = spec.tie_embeddings && blocks.contains(&head);
    let tied_size = if tied_head { (spec.vocab_size * spec.d_model) as f64 } else { 0.0 };
    let (mut matmul, mut all) = (tied_size, tied_size);
    // The embeddings, which are all that block 0 holds, are read by row: no matrix product.
    for param in parameters(spec).iter().filter(|p| blocks.contains(&p.block) && p.block > 0) {
        let len = param.len() as f64;
        all += len;
        if param.decays() {
            matmul += len;
        }
    }
    let layers = spec.layers_in(blocks.clone()) as f64;
    // Scores and their product with the values: 2·T·d each per token and layer.
    let attention = 4.0 * layers * spec.d_model as f64 * length;
    let forward = tokens * (2.0 * matmul + attention);
    Flops {
        forward,
        // Each product of the forward has two in the backward: one for its input, one for its weight.
        backward: 2.0 * forward,
        recomputed: 0.0,
        step: tokens * (6.0 * all + 3.0 * attention),
        convention: CONVENTION.to_owned(),
    }
}

/// FLOPs that one layer's backward computes again for each position, and the part of them that is attention's two products.
pub(crate) fn recomputed_per_position(spec: &ModelSpec, recompute: Recompute, length: usize) -> (f64, f64) {
    let (d, ff) = (spec.d_model as f64, spec.d_ff as f64);
    let attention = 4.0 * d * length as f64;
    let all = match recompute {
        Recompute::None => return (0.0, 0.0),
        // No gradient reads the result of attention's output projection.
        Recompute::Attention => 2.0 * d * spec.qkv_rows() as f64 + attention,
        Recompute::Block => {
            let layer = flops(spec, &(1..2), 1, length).forward;
            // No gradient reads the result of the MLP's last product, unless a norm reads the sum that it is added to.
            let last = if spec.variant.norm == NormPlace::Post { 0.0 } else { 2.0 * ff * d };
            layer - last
        }
    };
    (all, attention)
}

/// One activation that a layer keeps from forward to backward, or holds for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buffer {
    pub(crate) name: &'static str,
    /// Elements for one position of the micro-batch.
    pub(crate) per_position: usize,
    /// Activations and logits are kept in the run's precision; statistics (means, log-sum-exps) in f32 always.
    pub(crate) always_f32: bool,
}

fn buffer(name: &'static str, per_position: usize) -> Buffer {
    Buffer { name, per_position, always_f32: false }
}

fn statistic(name: &'static str, per_position: usize) -> Buffer {
    Buffer { name, per_position, always_f32: true }
}

/// Numbers that a norm keeps of each row: mean and 1/std, or 1/rms.
fn statistics_per_norm(family: Family) -> usize {
    if family == Family::Gpt2 { 2 } else { 1 }
}

/// The tensors that one layer's backward reads of its forward: `LayerActivations` and its parts in `runner_compute::nn`.
/// Dropout masks are made again.
pub(crate) fn layer_saved(s: &ModelSpec) -> Vec<Buffer> {
    let d = s.d_model;
    let (stats, mlp) = match s.family {
        Family::Gpt2 => {
            let activation = match s.variant.activation {
                Activation::Gelu => "gelu",
                Activation::Relu => "relu",
            };
            ("mean and 1/std of both norms", [buffer("mlp.c_fc output", s.d_ff), buffer(activation, s.d_ff)])
        }
        Family::Llama => {
            ("1/rms of both norms", [buffer("gate and up projections", 2 * s.d_ff), buffer("swiglu", s.d_ff)])
        }
    };
    // If norms follow the sums, the second sum is kept instead of the second norm.
    let second = if s.variant.norm == NormPlace::Post { "second residual sum" } else { "second norm" };
    let mut out = vec![buffer("input", d), buffer("first norm", d)];
    out.extend(attention_saved(s));
    out.extend([
        buffer("first residual sum", d),
        buffer(second, d),
        statistic(stats, 2 * statistics_per_norm(s.family)),
    ]);
    out.extend(mlp);
    out
}

/// The tensors of [`layer_saved`] that attention's backward reads.
pub(crate) fn attention_saved(s: &ModelSpec) -> [Buffer; 3] {
    [
        buffer("query, key, value", s.qkv_rows()),
        buffer("attention output", s.d_model),
        statistic("attention log-sum-exp", s.heads),
    ]
}

/// The tensors that a layer keeps from its forward to its backward.
pub(crate) fn layer_kept(s: &ModelSpec, recompute: Recompute) -> Vec<Buffer> {
    let mut out = layer_saved(s);
    match recompute {
        Recompute::None => {}
        Recompute::Attention => out.retain(|b| !attention_saved(s).contains(b)),
        Recompute::Block => out.truncate(1),
    }
    out
}

/// The tensors that the weights' gradients of a layer need when its input's gradient is computed (split backwards): the inputs of its four
/// products and the gradients of their outputs, nearly as much as the whole backward reads.
pub(crate) fn layer_work(s: &ModelSpec) -> Vec<Buffer> {
    let d = s.d_model;
    let up = if s.family == Family::Gpt2 { s.d_ff } else { 2 * s.d_ff };
    vec![
        buffer("inputs of four products", 3 * d + s.d_ff),
        buffer("gradients of four products", s.qkv_rows() + 2 * d + up),
    ]
}

/// The tensors of the forward that attention's part of a layer's backward holds at its peak, where it computes them again: those of the
/// MLP are free by then.
pub(crate) fn attention_again(s: &ModelSpec) -> Vec<Buffer> {
    let mut out = vec![buffer("input", s.d_model), buffer("first norm", s.d_model)];
    out.extend(attention_saved(s));
    out
}

/// The gradients in attention's backward.
pub(crate) fn attention_transient(s: &ModelSpec) -> Vec<Buffer> {
    let d = s.d_model;
    vec![
        buffer("gradient of the residual stream and of the norm", 2 * d),
        buffer("gradients of query, key, value and attention", s.qkv_rows() + d),
    ]
}

/// The tensors that the head keeps: the logits become their own gradient.
pub(crate) fn head_saved(s: &ModelSpec) -> Vec<Buffer> {
    let mut out = vec![buffer("head input", s.d_model)];
    if s.variant.final_norm {
        out.push(buffer("final norm", s.d_model));
        out.push(statistic("statistics of the final norm", statistics_per_norm(s.family)));
    }
    out.push(buffer("logits", s.vocab_size));
    out
}

/// The most that one layer's backward holds besides what is saved: the gradients that are alive in its widest operation.
pub(crate) fn layer_transient(s: &ModelSpec) -> Vec<Buffer> {
    let d = s.d_model;
    let wide = match s.family {
        // The activation's gradient is turned into its input's in place.
        Family::Gpt2 if s.variant.activation == Activation::Gelu => buffer("gradient of gelu and mlp.c_fc", s.d_ff),
        Family::Gpt2 => buffer("gradient of relu and mlp.c_fc", s.d_ff),
        // The activation itself is free when the gradients of gate and up are made.
        Family::Llama => buffer("gradients of swiglu, gate and up", 2 * s.d_ff),
    };
    let mlp = wide.per_position;
    let attention = s.qkv_rows() + d;
    let widest =
        if mlp >= attention { wide } else { buffer("gradients of query, key, value and attention", attention) };
    vec![buffer("gradient of the residual stream and of the norm", 2 * d), widest]
}

/// The most that the head's backward holds besides what is saved: the logits' gradient is in the logits' own buffer.
pub(crate) fn head_transient(s: &ModelSpec) -> Vec<Buffer> {
    if s.variant.final_norm {
        vec![buffer("gradients of the final norm and its input", 2 * s.d_model)]
    } else {
        vec![buffer("gradient of the head's input", s.d_model)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{gpt2_124m, llama_179m};

    fn all(spec: &ModelSpec) -> Range<usize> {
        0..spec.block_count()
    }

    fn count(spec: &ModelSpec, blocks: &Range<usize>) -> ParamCounts {
        count_chunks(spec, &[blocks.clone().into()])
    }

    #[test]
    fn gpt2_124m_with_the_padded_vocabulary() {
        let spec = gpt2_124m(50_304);
        let counts = count(&spec, &all(&spec));
        assert_eq!((counts.decayed_tensors, counts.decayed), (50, 124_354_560));
        assert_eq!((counts.other_tensors, counts.other), (98, 121_344));
    }

    #[test]
    fn published_totals() {
        let gpt2 = gpt2_124m(50_257);
        assert_eq!(count(&gpt2, &all(&gpt2)).total, 124_439_808);
        let llama = llama_179m();
        assert_eq!(count(&llama, &all(&llama)).total, 179_448_576);
    }

    /// The language model of PyTorch's tutorial on pipelines and data parallelism; and one layer of it by hand:
    /// 4·d² + 4·d of attention, 2·d·ff + ff + d of the MLP, 4·d of the norms.
    #[test]
    fn the_encoder_of_a_billion_parameters() {
        let spec = crate::testing::encoder(28_783, 8, 4096, 16);
        assert_eq!(count(&spec, &all(&spec)).total, 1_041_453_167);
        let (d, ff) = (4096, 4096);
        assert_eq!(count(&spec, &(1..2)).total, 4 * d * d + 4 * d + 2 * d * ff + ff + d + 4 * d);
        assert_eq!(count(&spec, &(0..1)).total, 28_783 * d, "sinusoids are no parameters");
        assert_eq!(count(&spec, &(9..10)).total, 28_783 * (d + 1));
        assert!(param_bound(&spec) >= 1_041_453_167.0);
    }

    #[test]
    fn blocks_add_up_to_the_model() {
        for spec in [gpt2_124m(50_304), llama_179m()] {
            let whole = count(&spec, &all(&spec));
            let cut = spec.layers / 2;
            let (front, back) = (count(&spec, &(0..cut)), count(&spec, &(cut..spec.block_count())));
            // The last stage has a copy of a tied embedding.
            let copies = usize::from(spec.tie_embeddings);
            let copied = (copies * spec.vocab_size * spec.d_model) as u64;
            assert_eq!(front.total + back.total, whole.total + copied);
            assert_eq!(front.decayed_tensors + back.decayed_tensors, whole.decayed_tensors + copies);
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

    /// The same model: attention computes its projections and both of its products again; a layer all but the MLP's second
    /// product, which no backward reads unless a norm follows the sum.
    #[test]
    fn what_is_computed_again() {
        let spec = ModelSpec { layers: 1, heads: 2, kv_heads: 2, d_model: 4, d_ff: 8, ..gpt2_124m(16) };
        let of = |spec: &ModelSpec, recompute| spec.layers as f64 * 6.0 * recomputed_per_position(spec, recompute, 2).0;
        let products = 2 * (2 * 2 * 4);
        assert_eq!(of(&spec, Recompute::None), 0.0);
        assert_eq!(of(&spec, Recompute::Attention), f64::from(6 * (2 * 4 * 12 + products)));
        let layer = 2 * (4 * 12 + 4 * 4 + 4 * 8) + products;
        assert_eq!(of(&spec, Recompute::Block), f64::from(6 * layer));
        let mut post = spec.clone();
        post.variant.norm = NormPlace::Post;
        assert_eq!(of(&post, Recompute::Block), f64::from(6 * (layer + 2 * 8 * 4)));
    }

    #[test]
    fn what_is_kept_is_part_of_what_is_read() {
        for spec in [gpt2_124m(50_304), llama_179m(), crate::testing::encoder(28_783, 8, 4096, 16)] {
            let sum = |buffers: Vec<Buffer>| buffers.iter().map(|b| b.per_position).sum::<usize>();
            let (all, d) = (sum(layer_saved(&spec)), spec.d_model);
            assert_eq!(sum(layer_kept(&spec, Recompute::None)), all);
            assert_eq!(sum(layer_kept(&spec, Recompute::Attention)), all - spec.qkv_rows() - d - spec.heads);
            assert_eq!(sum(layer_kept(&spec, Recompute::Block)), d);
        }
    }

    #[test]
    fn the_bound_bounds() {
        for spec in [gpt2_124m(50_257), llama_179m()] {
            let total = count(&spec, &all(&spec)).total as f64;
            assert!(param_bound(&spec) >= total && param_bound(&spec) < 2.0 * total);
        }
    }
}
