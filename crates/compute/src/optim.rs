//! Clipping, and one optimizer step over the flat state, group by group. Each optimizer's arithmetic is in a file of its name.

#![allow(clippy::inline_always, reason = "see `kernels::cpu::simd::vectorize`")]

use candle_core::{Result, Tensor};

use crate::kernels::optimizer;
use crate::state::TrainState;
use runner_spec::optimizer::{Optimizer, ParameterGroup};

pub(crate) mod adamw;
pub(crate) mod lion;
pub(crate) mod sgd;

use adamw::AdamWUpdate;
use lion::LionUpdate;
use sgd::{MomentumSgdUpdate, PlainSgdUpdate};

/// The numbers that change from update to update.
#[derive(Debug, Clone, Copy)]
pub struct UpdateInputs {
    pub lr: f64,
    /// This update's number, from 1.
    pub t: u64,
    /// Factor on the gradients (clipping).
    pub grad_scale: f64,
}

/// The factor that brings gradients of L2 norm `norm` to at most `max`, as PyTorch's `clip_grad_norm_` computes it.
pub fn clip_scale(norm: f64, max: Option<f64>) -> f64 {
    match max {
        Some(max) => (max / (norm + 1e-6)).min(1.0),
        None => 1.0,
    }
}

/// Updates the weights and moments in `state` with `grad_scale`·`grads` (`[layout.total]`) at learning rate `lr`. `state.step` counts
/// the updates before this one. State and gradients are of one type. `copy` (a bf16 tensor) becomes the first weights rounded, in the
/// same pass.
pub fn update(
    state: &TrainState,
    optimizer: &Optimizer,
    grads: &Tensor,
    lr: f64,
    grad_scale: f64,
    copy: Option<&Tensor>,
) -> Result<()> {
    let inputs = UpdateInputs { lr, t: state.step + 1, grad_scale };
    let mut groups = optimizer.groups(&state.layout).into_iter();
    groups.try_for_each(|group| update_group(&group, &state.buffer, grads, inputs, copy))
}

/// [`update`] of the weights and moments of one group.
pub fn update_group(
    group: &ParameterGroup,
    buffer: &Tensor,
    grads: &Tensor,
    inputs: UpdateInputs,
    copy: Option<&Tensor>,
) -> Result<()> {
    let elements = &group.elements;
    let inputs = UpdateInputs { lr: inputs.lr * group.lr_scale, ..inputs };
    match group.optimizer {
        Optimizer::Adamw(adamw) => optimizer::update(&AdamWUpdate(adamw, inputs), buffer, grads, elements, copy),
        Optimizer::Lion(lion) => optimizer::update(&LionUpdate(lion, inputs), buffer, grads, elements, copy),
        Optimizer::Sgd(sgd) if sgd.momentum == 0.0 => {
            optimizer::update(&PlainSgdUpdate(inputs), buffer, grads, elements, copy)
        }
        Optimizer::Sgd(sgd) => {
            optimizer::update(&MomentumSgdUpdate(sgd.momentum, inputs), buffer, grads, elements, copy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{random_state, values, with_buffer};
    use runner_spec::optimizer::{AdamW, Decays, Lion};

    /// With gradients of 0 and no moments an update is the decay alone, w·(1 − lr·decay).
    #[test]
    fn weight_decay_applies_to_matrices_or_to_all() {
        for decays in [Decays::Matrices, Decays::All] {
            for optimizer in [
                Optimizer::Adamw(AdamW { weight_decay: 0.5, decays, ..AdamW::default() }),
                Optimizer::Lion(Lion { weight_decay: 0.5, decays, ..Lion::default() }),
            ] {
                let moments = optimizer.description().moments();
                let state = random_state(1, moments);
                let total = state.layout.total;
                let zeros = vec![0.0_f32; moments * total];
                let weights: Vec<f32> = values(&state)[..total].iter().map(|bits| f32::from_bits(*bits)).collect();
                let state = with_buffer(&state, [weights.clone(), zeros].concat());
                let grads = state.weights().unwrap().zeros_like().unwrap();
                update(&state, &optimizer, &grads, 0.5, 1.0, None).unwrap();
                let decayed = if decays == Decays::All { total } else { state.layout.matrices };
                assert!(state.layout.matrices > 0 && state.layout.matrices < total);
                for (i, (before, after)) in weights.iter().zip(values(&state)).enumerate() {
                    let factor = if i < decayed { 0.75 } else { 1.0 };
                    assert_eq!(f32::from_bits(after), before * factor, "{decays:?}, element {i} of {total}");
                }
            }
        }
    }
}
