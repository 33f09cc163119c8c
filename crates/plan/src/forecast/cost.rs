//! The costs of a model in parameters and FLOPs, counted block by block so that any slice of the block list can be priced.

use std::ops::Range;

use runner_spec::model::ModelSpec;
use runner_spec::model::parts::PartParameter;
use runner_spec::plan::{Flops, ParamCounts, Plan};
use runner_spec::program::{BlockRange, Program};
use serde::{Deserialize, Serialize};

/// The convention by which the FLOPs of MFU are counted. The text appears beside every figure, because MFU cannot be compared without it.
pub(crate) const CONVENTION: &str =
    "6·N + 12·L·d·T per token (nanoGPT, torchtitan): N without position and lookup-only embeddings, attention in full";

/// Parameters of the parts of the model that one rank holds. A tied embedding counts on both stages that hold it.
pub fn count_chunks(spec: &ModelSpec, chunks: &[BlockRange]) -> ParamCounts {
    let decoder = spec.decoder();
    let holds = |block: usize| u64::from(chunks.iter().any(|chunk| chunk.contains(block)));
    let (first, last) = (holds(0), holds(spec.layers + 1));
    let mut counts = ParamCounts::default();
    let mut add = |each: ParamCounts, times: u64| {
        counts.decayed_tensors += each.decayed_tensors * times as usize;
        counts.decayed += each.decayed * times;
        counts.other_tensors += each.other_tensors * times as usize;
        counts.other += each.other * times;
        counts.total += each.total * times;
    };
    add(count(&decoder.embedding.parameters()), first);
    for (layer, times) in chunks.iter().flat_map(|chunk| decoder.layers.count_in(chunk.range())) {
        add(count(&layer.parameters(0)), times as u64);
    }
    add(count(&decoder.head.parameters(spec.layers + 1)), last);
    if spec.tie_embeddings && last > first {
        add(count(&decoder.embedding.parameters()[..1]), 1);
    }
    counts
}

/// The size of a model, or of a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ModelSize {
    pub parameters: u64,
    /// The mean of optimizer steps, as counted for MFU.
    pub flops_per_step: f64,
}

impl ModelSize {
    /// The layers of `plan`, without embeddings and head.
    pub fn of_layers(plan: &Plan) -> Option<Self> {
        let program = &plan.ranks.first()?.program;
        let layers = 1..program.model.layers + 1;
        let parameters = count_chunks(&program.model, &[layers.clone().into()]).total;
        let flops_of = |program: &Program| {
            let tokens = program.batch.sequences as u64 * program.batch.length as u64;
            flops(&program.model, &layers, tokens, program.batch.length).step
        };
        let (mut sum, mut done) = (0.0, 0);
        for (stage, until) in program.stages().iter().zip(program.stage_ends()) {
            sum += (until - done) as f64 * flops_of(stage);
            done = until;
        }
        let mean = if program.earlier.is_empty() { flops_of(program) } else { sum / program.steps.max(1) as f64 };
        Some(Self { parameters, flops_per_step: mean })
    }
}

/// Parameters of each entry of the block list.
pub(crate) fn block_params(spec: &ModelSpec) -> Vec<u64> {
    let decoder = spec.decoder();
    let total = |parameters: &[PartParameter]| count(parameters).total;
    let (embedding, head) = (decoder.embedding.parameters(), decoder.head.parameters(spec.layers + 1));
    let layers = decoder.layers.map(|layer| total(&layer.parameters(0)));
    [total(&embedding)].into_iter().chain(layers).chain([total(&head)]).collect()
}

pub(crate) fn count(parameters: &[PartParameter]) -> ParamCounts {
    let mut counts = ParamCounts::default();
    for PartParameter { spec, .. } in parameters {
        let len = spec.len() as u64;
        if spec.is_matrix() {
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

/// FLOPs of one optimizer step over `tokens` positions in rows of `length`, for the given blocks.
pub(crate) fn flops(spec: &ModelSpec, blocks: &Range<usize>, tokens: u64, length: usize) -> Flops {
    let BlockProducts { products, attention } = BlockProducts::new(spec, blocks, length);
    let vectors = count_chunks(spec, &[blocks.clone().into()]).other as f64;
    let tokens = tokens as f64;
    let forward = tokens * (2.0 * products + attention);
    Flops {
        forward,
        // Each product of the forward has two in the backward: one for its input, one for its weight.
        backward: 2.0 * forward,
        recomputed: 0.0,
        step: tokens * (6.0 * (products + vectors) + 3.0 * attention),
        convention: CONVENTION.to_owned(),
    }
}

/// FLOPs of the forward of one position in rows of `length`, for the given blocks.
pub(crate) fn forward_flops(spec: &ModelSpec, blocks: &Range<usize>, length: usize) -> f64 {
    let BlockProducts { products, attention } = BlockProducts::new(spec, blocks, length);
    2.0 * products + attention
}

/// The numbers in the matrices that some blocks multiply a position with, and the FLOPs of its attention scores.
struct BlockProducts {
    products: f64,
    attention: f64,
}

impl BlockProducts {
    fn new(spec: &ModelSpec, blocks: &Range<usize>, length: usize) -> Self {
        let decoder = spec.decoder();
        // The embeddings are read by row: no matrix product. A head that is tied multiplies by the
        // embedding's matrix.
        let heads = f64::from(u8::from(blocks.contains(&(spec.layers + 1))));
        let mut sum = Self { products: heads * decoder.head.project.size() as f64, attention: 0.0 };
        if blocks.contains(&0) {
            sum.products += decoder.embedding.sums.gate_size() as f64;
        }
        sum.products += heads * decoder.head.sums.gate_size() as f64;
        for (layer, times) in decoder.layers.count_in(blocks.clone()) {
            sum.products += times as f64 * layer.multiplications() as f64;
            sum.attention += times as f64 * layer.score_flops(length);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{gpt2_124m, llama_179m};
    use runner_spec::experiment::{Family, NormPlace, Recompute};

    fn all(spec: &ModelSpec) -> Range<usize> {
        0..spec.block_count()
    }

    fn count(spec: &ModelSpec, blocks: &Range<usize>) -> ParamCounts {
        count_chunks(spec, &[blocks.clone().into()])
    }

    #[test]
    fn gpt2_124m_with_the_padded_vocabulary_has_the_known_counts() {
        let spec = gpt2_124m(50_304);
        let counts = count(&spec, &all(&spec));
        assert_eq!((counts.decayed_tensors, counts.decayed), (50, 124_354_560));
        assert_eq!((counts.other_tensors, counts.other), (98, 121_344));
    }

    #[test]
    fn published_totals_of_parameters_are_reached() {
        let gpt2 = gpt2_124m(50_257);
        assert_eq!(count(&gpt2, &all(&gpt2)).total, 124_439_808);
        let llama = llama_179m();
        assert_eq!(count(&llama, &all(&llama)).total, 179_448_576);
    }

    /// The language model of PyTorch's tutorial on pipelines and data parallelism; and one layer of it by hand:
    /// 4·d² + 4·d of attention, 2·d·ff + ff + d of the MLP, 4·d of the norms.
    #[test]
    fn the_encoder_of_a_billion_parameters_has_that_many() {
        let spec = crate::testing::encoder(28_783, 8, 4096, 16);
        assert_eq!(count(&spec, &all(&spec)).total, 1_041_453_167);
        let (d, ff) = (4096, 4096);
        assert_eq!(count(&spec, &(1..2)).total, 4 * d * d + 4 * d + 2 * d * ff + ff + d + 4 * d);
        assert_eq!(count(&spec, &(0..1)).total, 28_783 * d, "sinusoids are not parameters");
        assert_eq!(count(&spec, &(9..10)).total, 28_783 * (d + 1));
        assert!(spec.parameter_bound() >= 1_041_453_167.0);
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
    fn flops_follow_the_convention() {
        let spec = gpt2_124m(50_304);
        assert_eq!(flops(&spec, &all(&spec), 1, 1024).step, 855_383_040.0);
        // Llama, untied: the lookup table of 50,000·768 costs nothing, 6·(179,448,576 - 38,400,000) + 12·12·768·512.
        let llama = llama_179m();
        assert_eq!(flops(&llama, &all(&llama), 1, 512).step, 6.0 * 141_048_576.0 + 56_623_104.0);
    }

    /// The exact count of a model small enough to write every product down: 1 layer, d 4, ff 8, vocabulary 16, T 2.
    #[test]
    fn every_product_of_a_tiny_model_counts() {
        let spec = ModelSpec { d_ff: 8, ..ModelSpec::with_defaults(Family::Gpt2, [16, 1024, 1, 2, 4]) };
        let per_token = 2 * (4 * 12 + 4 * 4 + 4 * 8 + 8 * 4 + 4 * 16) + 2 * (2 * 2 * 4);
        let got = flops(&spec, &all(&spec), 6, 2);
        assert_eq!(got.forward, f64::from(6 * per_token));
        assert_eq!(got.backward, 2.0 * got.forward);
    }

    /// The same model: attention computes its projections and both of its products again; a layer all but the MLP's second
    /// product, which no backward reads unless a norm follows the sum.
    #[test]
    fn recomputed_flops_equal_those_by_hand() {
        let spec = ModelSpec { d_ff: 8, ..ModelSpec::with_defaults(Family::Gpt2, [16, 1024, 1, 2, 4]) };
        let of = |spec: &ModelSpec, recompute| 6.0 * spec.decoder().layers.pattern()[0].recomputed_flops(recompute, 2);
        let products = 2 * (2 * 2 * 4);
        assert_eq!(of(&spec, Recompute::None), 0.0);
        assert_eq!(of(&spec, Recompute::Attention), f64::from(6 * (2 * 4 * 12 + products)));
        let layer = 2 * (4 * 12 + 4 * 4 + 4 * 8) + products;
        assert_eq!(of(&spec, Recompute::Block), f64::from(6 * layer));
        let mut post = spec.clone();
        post.options.norm = NormPlace::Post;
        assert_eq!(of(&post, Recompute::Block), f64::from(6 * (layer + 2 * 8 * 4)));
    }

    #[test]
    fn kept_tensors_are_among_those_that_are_read() {
        for spec in [gpt2_124m(50_304), llama_179m(), crate::testing::encoder(28_783, 8, 4096, 16)] {
            let decoder = spec.decoder();
            let layer = &decoder.layers.pattern()[0];
            let qkv: usize = layer.attentions().map(|attention| attention.qkv.width()).sum();
            let sum = |recompute| layer.kept(recompute).iter().map(|b| b.per_position).sum::<usize>();
            let (all, d) = (sum(Recompute::None), spec.d_model);
            assert_eq!(sum(Recompute::Attention), all - qkv - d - spec.heads);
            assert_eq!(sum(Recompute::Block), d);
        }
    }

    #[test]
    fn the_bound_bounds() {
        for spec in [gpt2_124m(50_257), llama_179m()] {
            let total = count(&spec, &all(&spec)).total as f64;
            assert!(spec.parameter_bound() >= total && spec.parameter_bound() < 2.0 * total);
        }
    }
}
