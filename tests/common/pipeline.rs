//! A model cut into chunks on several ranks, driven in one process: tensors are handed over where ranks would send them.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::single_range_in_vec_init, reason = "a list of chunks may have one")]

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Tensor};
use runner_compute::model::{Model, Output, Params, SavedActivations};
use runner_compute::nn::MicroBatch;
use runner_spec::data::IGNORED_TARGET;
use runner_spec::model::ModelOptions;
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::stage::{stage_parameters, tied_copy, tied_original};
use runner_spec::model::{ModelSpec, parameters};

use super::{
    WholePasses as _, below, encoder, micro_batch, random_params, small_gpt2, small_llama, values, with_values,
};

/// The chunks, parameters and gradients that a rank holds.
pub struct Rank {
    pub chunks: Vec<Range<usize>>,
    pub params: Params,
    pub grads: Params,
}

/// A model cut into chunks. Chunk i is on rank i mod the number of ranks.
pub struct Pipeline {
    pub name: String,
    pub ranks: Vec<Rank>,
    pub stages: Vec<(usize, Model)>,
}

/// Both families with three layers, tied and untied, with dropout where the family has it; and a stack of encoder layers.
pub fn specs() -> Vec<ModelSpec> {
    let gpt2 = ModelSpec { layers: 3, dropout: 0.2, ..small_gpt2() };
    let llama = ModelSpec { layers: 3, ..small_llama() };
    let with = |spec: &ModelSpec, tie_embeddings: bool| ModelSpec { tie_embeddings, ..spec.clone() };
    let encoder = ModelSpec { options: ModelOptions { mlp_dropout: 0.2, ..encoder() }, ..gpt2.clone() };
    let mut all =
        vec![with(&gpt2, true), with(&gpt2, false), with(&llama, true), with(&llama, false), with(&encoder, false)];
    all.extend(super::models_with_sums().into_iter().take(1).map(|(_, spec)| spec));
    all
}

/// Every way to cut `blocks` blocks into `count` chunks.
pub fn cuts(blocks: usize, count: usize) -> Vec<Vec<Range<usize>>> {
    fn rest(from: usize, blocks: usize, count: usize) -> Vec<Vec<Range<usize>>> {
        if count == 1 {
            return vec![vec![from..blocks]];
        }
        (from + 1..=blocks + 1 - count)
            .flat_map(|cut| rest(cut, blocks, count - 1).into_iter().map(move |more| [vec![from..cut], more].concat()))
            .collect()
    }
    rest(0, blocks, count)
}

/// The whole model on one rank.
pub fn whole(spec: &ModelSpec, dtype: DType) -> Pipeline {
    let params = weights(spec, dtype);
    Pipeline::new(spec, &params, &[0..spec.block_count()], 1)
}

/// Every split of the block list into 1 to 3 chunks on as many ranks; and 3 to 5 chunks on fewer, so that ranks hold chunks
/// that are not neighbours.
pub fn pipelines(spec: &ModelSpec, dtype: DType) -> Vec<Pipeline> {
    let params = weights(spec, dtype);
    let mut all = Vec::new();
    for (count, ranks) in [(1, 1), (2, 2), (3, 3), (3, 1), (3, 2), (4, 2), (5, 2), (5, 3)] {
        for chunks in cuts(spec.block_count(), count) {
            all.push(Pipeline::new(spec, &params, &chunks, ranks));
        }
    }
    all
}

/// Random weights of the whole model.
pub fn weights(spec: &ModelSpec, dtype: DType) -> Params {
    let params = random_params(parameters(spec), 0.3);
    with_values(&params.layout, values(&params.flat), dtype)
}

impl Pipeline {
    pub fn new(spec: &ModelSpec, whole: &Params, chunks: &[Range<usize>], ranks: usize) -> Self {
        let mut stages = Vec::new();
        let mut held = Vec::new();
        for rank in 0..ranks {
            let chunks: Vec<_> = chunks.iter().skip(rank).step_by(ranks).cloned().collect();
            let layout = Arc::new(ParamLayout::new(stage_parameters(spec, &chunks)));
            let params = with_values(&layout, values_for(&layout, whole), whole.flat.dtype());
            held.push(Rank { grads: super::zeros(&params), params, chunks });
        }
        for (i, chunk) in chunks.iter().enumerate() {
            let params = &held[i % ranks].params;
            let model = Model::new(spec, params.layout.clone(), chunk.clone(), 7, &params.flat).unwrap();
            stages.push((i % ranks, model));
        }
        let name = format!("{:?}, tied: {}, {chunks:?} on {ranks} ranks", spec.family, spec.tie_embeddings);
        Self { name, ranks: held, stages }
    }

    /// Losses, and what each stage's backward needs.
    pub fn forward(&self, mb: &MicroBatch) -> (Vec<f32>, Vec<Vec<SavedActivations>>) {
        let (mut x, mut all) = (None, Vec::new());
        for (rank, model) in &self.stages {
            let (output, saved) = model.forward(&self.ranks[*rank].params, x.take(), mb).unwrap();
            all.push(saved);
            match output {
                Output::Hidden(y) => x = Some(y.packed().unwrap()),
                Output::Losses(losses) => return (losses.read().unwrap(), all),
            }
        }
        panic!("{}: no head", self.name)
    }

    /// Adds all gradients in one pass, last stage first.
    pub fn backward(&self, saved: Vec<Vec<SavedActivations>>, mb: &MicroBatch) {
        let mut d: Option<Tensor> = None;
        for ((rank, model), saved) in self.stages.iter().zip(saved).rev() {
            let rank = &self.ranks[*rank];
            d = model.backward(&rank.params, &rank.grads, saved, d, mb).unwrap();
        }
        assert!(d.is_none(), "{}: nothing is before the embedding", self.name);
    }

    /// Gradients by name as in the whole model's `layout`, flat; those of a tied embedding and its copy added.
    pub fn gradients(&self, spec: &ModelSpec, layout: &ParamLayout) -> Vec<f64> {
        let mut flat = vec![0.0; layout.total];
        let mut copies = Vec::new();
        for rank in &self.ranks {
            let (own, grads) = (&rank.params.layout, values(&rank.grads.flat));
            let copy = tied_copy(own, spec, &rank.chunks);
            for (i, entry) in own.entries.iter().enumerate() {
                if copy == Some(i) {
                    copies.push(grads[entry.range()].to_vec());
                } else {
                    let to = layout.entry(&entry.spec.name).unwrap().range();
                    flat[to].copy_from_slice(&grads[entry.range()]);
                }
            }
        }
        for rank in &self.ranks {
            let Some(original) = tied_original(&rank.params.layout, spec, &rank.chunks) else { continue };
            let to = layout.entry(&rank.params.layout.entries[original].spec.name).unwrap().range();
            let copy = copies.pop().unwrap();
            flat[to].iter_mut().zip(copy).for_each(|(a, b)| *a += b);
        }
        assert!(copies.is_empty(), "{}: every copy has its original", self.name);
        flat
    }
}

/// The values of `layout`'s parameters, out of the whole model's.
fn values_for(layout: &ParamLayout, whole: &Params) -> Vec<f64> {
    let from = values(&whole.flat);
    let mut flat = vec![0.0; layout.total];
    for entry in &layout.entries {
        flat[entry.range()].copy_from_slice(&from[whole.layout.entry(&entry.spec.name).unwrap().range()]);
    }
    flat
}

/// Micro-batch `index` of two rows, in training; the last row is padding from its middle on, as are some targets.
pub fn padded_micro_batch(spec: &ModelSpec, index: usize) -> MicroBatch {
    let (rows, seq) = (2, 9);
    let ids = below(&format!("ids {index}"), rows * seq, spec.vocab_size);
    let mut targets = below(&format!("targets {index}"), rows * seq, spec.vocab_size);
    targets.iter_mut().step_by(5).for_each(|t| *t = IGNORED_TARGET);
    targets[seq + seq / 2..].fill(IGNORED_TARGET);
    let mut mb = micro_batch(&ids, targets, seq);
    (mb.training, mb.step, mb.first_sample, mb.scale) = (true, 3, (index * rows) as u64, 0.05);
    mb
}
