//! Times of a model's blocks: the code that a run trains with, on pieces of a model.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Result, Tensor, bail};

use super::clock::{Repetitions, stopwatch, timed};
use runner_compute::kernels::optimizer;
use runner_compute::model::{Model, Output, Params, Stream, init};
use runner_compute::nn::MicroBatch;
use runner_compute::optim;
use runner_compute::state::TrainState;
use runner_spec::experiment::{Family, Optimizer};
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::{ModelSpec, ParamInit, ParamRole, ParamSpec, parameters};
use runner_spec::rates::{ConcurrentLoad, EmbeddingPoint, HeadPoint, LayerPoint, UpdatePoint};

const SEED: u64 = 1;

/// Layers that are measured together, so that they meet caches as in a model; wide ones fill a cache alone.
fn layers(d_model: usize) -> usize {
    if d_model >= 512 { 1 } else { 4 }
}

/// A micro-batch of rows of `length` tokens, `positions` tokens in all, for a model of width `d_model`.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeasuredShape {
    pub d_model: usize,
    pub positions: usize,
    pub length: usize,
}

/// A model of the shape that calibration measures.
fn spec(family: Family, d_model: usize, vocab_size: usize, length: usize) -> ModelSpec {
    ModelSpec::for_calibration(family, [vocab_size, length, layers(d_model), d_model])
}

/// Forward and backward of a layer.
pub(super) fn layer(
    busy: ConcurrentLoad,
    family: Family,
    s: MeasuredShape,
    bf16: bool,
    repetitions: Repetitions,
) -> Result<LayerPoint> {
    let spec = spec(family, s.d_model, 16, s.length);
    let times = timed(busy, repetitions, || Ok(ModelSlice::new(&spec, 1..spec.layers + 1, s, bf16)?.work()))?;
    let [forward, backward] = times.map(|seconds| seconds / spec.layers as f64);
    let MeasuredShape { d_model, positions, length } = s;
    Ok(LayerPoint { family, busy, d_model, positions, length, forward, backward })
}

/// Forward and backward of the head.
pub(super) fn head(
    busy: ConcurrentLoad,
    vocab: usize,
    s: MeasuredShape,
    repetitions: Repetitions,
) -> Result<HeadPoint> {
    let spec = spec(Family::default(), s.d_model, vocab, s.length);
    let [forward, backward] =
        timed(busy, repetitions, || Ok(ModelSlice::new(&spec, spec.layers + 1..spec.layers + 2, s, false)?.work()))?;
    Ok(HeadPoint { busy, d_model: s.d_model, vocab, positions: s.positions, forward, backward })
}

/// Forward and backward of the embedding.
pub(super) fn embedding(busy: ConcurrentLoad, s: MeasuredShape, repetitions: Repetitions) -> Result<EmbeddingPoint> {
    let spec = spec(Family::default(), s.d_model, 4096, s.length);
    let [forward, backward] = timed(busy, repetitions, || Ok(ModelSlice::new(&spec, 0..1, s, false)?.work()))?;
    Ok(EmbeddingPoint { busy, d_model: s.d_model, positions: s.positions, forward, backward })
}

/// The end of a step under the default optimizer: norm, update, clearing.
pub(super) fn update(busy: ConcurrentLoad, parameters: usize, repetitions: Repetitions) -> Result<UpdatePoint> {
    let default = Optimizer::default();
    let [seconds] = timed(busy, repetitions, || {
        let (shape, init) = (vec![1, parameters], ParamInit::Zeros);
        let layout = Arc::new(ParamLayout::new(vec![ParamSpec {
            name: String::new(),
            shape,
            init,
            block: 0,
            role: ParamRole::Weight,
        }]));
        let groups = default.groups(&[], &layout, 0);
        let mut state =
            TrainState::zeroed(layout, default.description().moments(), candle_core::DType::F32, &Device::Cpu)?;
        let grads = Tensor::full(1e-3_f32, parameters, &Device::Cpu)?;
        Ok(move || {
            let (seconds, ()) = stopwatch(|| {
                optimizer::norm(&grads)?;
                optim::update(&state, &groups, &grads, [1e-4, 1.0], None, candle_core::DType::F32)?;
                optimizer::clear(&grads)
            })?;
            state.step += 1;
            Ok([seconds])
        })
    })?;
    Ok(UpdatePoint { busy, parameters, seconds })
}

/// Some blocks of a model, with a micro-batch for them.
struct ModelSlice {
    model: Model,
    weights: Params,
    grads: Params,
    mb: MicroBatch,
    /// The input that the blocks before, and the gradient that the blocks after, would give.
    input: Option<Stream>,
    dy: Option<Stream>,
}

impl ModelSlice {
    fn new(spec: &ModelSpec, blocks: Range<usize>, s: MeasuredShape, bf16: bool) -> Result<Self> {
        let specs = parameters(spec).into_iter().filter(|p| blocks.contains(&p.block)).collect();
        let layout = Arc::new(ParamLayout::new(specs));
        let mut values = vec![0.0_f32; layout.total];
        for entry in &layout.entries {
            init::fill(&mut values[entry.range()], entry, SEED);
        }
        let flat = Tensor::from_vec(values, layout.total, &Device::Cpu)?;
        let grads = Params::new(layout.clone(), flat.zeros_like()?);
        let weights = if bf16 { Params::rounded(layout.clone(), flat)? } else { Params::new(layout.clone(), flat) };
        let model = Model::new(spec, layout, blocks.clone(), SEED, &weights.flat)?;
        let ids: Vec<u32> = (0..s.positions).map(|i| (i * 7919 % spec.vocab_size) as u32).collect();
        let dtype = weights.activation_dtype();
        let hidden = || Tensor::randn(0.0_f32, 1.0, (s.positions, s.d_model), &Device::Cpu)?.to_dtype(dtype);
        let mb = MicroBatch {
            training: true,
            scale: 1.0 / s.positions as f64,
            ..model.micro_batch(&ids, ids.clone(), s.length)?
        };
        let input = if blocks.start > 0 { Some(hidden()?.into()) } else { None };
        let dy = if blocks.end < spec.block_count() { Some(hidden()?.into()) } else { None };
        Ok(Self { model, weights, grads, mb, input, dy })
    }

    /// Returns a function that runs a forward and its backward, and returns the seconds of each.
    fn work(self) -> impl FnMut() -> Result<[f64; 2]> + Send {
        move || {
            let (forward, (output, mut saved)) = stopwatch(|| {
                self.model.forward_with_hook(&self.weights, self.input.clone(), &self.mb, &mut |_, _| Ok(()))
            })?;
            if matches!(output, Output::Losses(_)) == self.dy.is_some() {
                bail!("a piece of a model that ends where it should not")
            }
            drop(output);
            let (backward, _) = stopwatch(|| {
                let (dy, blocks) = (self.dy.clone(), self.model.range.clone());
                self.model.backward_blocks(&self.weights, &self.grads, &mut saved, dy, &self.mb, blocks)
            })?;
            Ok([forward, backward])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONCE: Repetitions = Repetitions { least: 1, most: 1, seconds: 0.0 };
    const ONE: ConcurrentLoad = ConcurrentLoad { ranks: 1, threads: 1 };

    #[test]
    fn every_piece_of_both_families_can_be_measured() {
        let s = MeasuredShape { d_model: 64, positions: 16, length: 8 };
        for family in Family::ALL {
            let point = layer(ONE, family, s, true, ONCE).expect("a layer");
            assert!(point.forward > 0.0 && point.backward > 0.0);
        }
        assert!(head(ConcurrentLoad { ranks: 2, threads: 1 }, 32, s, ONCE).expect("a head").backward > 0.0);
        assert!(embedding(ONE, s, ONCE).expect("an embedding").forward > 0.0);
        assert!(update(ONE, 1000, ONCE).expect("an update").seconds > 0.0);
    }
}
