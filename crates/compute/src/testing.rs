//! Small training states and layouts for tests of other crates.

#![allow(clippy::unwrap_used, reason = "fixtures of tests")]

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::state::TrainState;
use runner_spec::event::BestValidation;
use runner_spec::experiment::Family;
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::{ModelSpec, parameters};

pub fn spec() -> ModelSpec {
    ModelSpec::with_defaults(Family::Gpt2, [11, 8, 1, 2, 4])
}

pub fn layout() -> Arc<ParamLayout> {
    Arc::new(ParamLayout::new(parameters(&spec())))
}

/// A state whose numbers depend on `step`, like that of a training.
pub fn random_state(step: u64, moments: usize) -> TrainState {
    let mut state = TrainState::zeroed(layout(), moments, DType::F32, &Device::Cpu).unwrap();
    let mut x = step.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let values = (0..state.buffer.elem_count()).map(|_| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 40) as f32 / (1 << 24) as f32 - 0.5
    });
    state.buffer = Tensor::from_iter(values, &Device::Cpu).unwrap();
    state.step = step;
    state.tokens = step * 96;
    state.best = Some(BestValidation { step, val_loss: 1.0 / 3.0 });
    state
}

pub fn with_buffer(state: &TrainState, values: Vec<f32>) -> TrainState {
    let buffer = Tensor::new(values, &Device::Cpu).unwrap();
    TrainState { buffer, layout: state.layout.clone(), ..*state }
}

pub fn values(state: &TrainState) -> Vec<u32> {
    state.buffer.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}
