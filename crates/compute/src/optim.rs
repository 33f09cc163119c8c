//! Clipping, and one optimizer step over the whole flat state.

use candle_core::{Result, Tensor};

use crate::kernels::optimizer::{self, AdamW, Sgd};
use crate::state::TrainState;
use runner_spec::experiment::Decays;
use runner_spec::program::OptimizerSpec;

/// The factor that brings gradients of L2 norm `norm` to at most `max`, as PyTorch's `clip_grad_norm_` computes it.
pub fn clip_scale(norm: f64, max: Option<f64>) -> f64 {
    match max {
        Some(max) => (max / (norm + 1e-6)).min(1.0),
        None => 1.0,
    }
}

/// Updates the weights and moments in `state` with `grad_scale`·`grads` ([layout.total]) at learning rate `lr`. `state.step` counts
/// the updates before this one. State and gradients are of one type. `copy` (a bf16 tensor) becomes the first weights rounded, in the
/// same pass.
pub fn update(
    state: &TrainState,
    spec: &OptimizerSpec,
    grads: &Tensor,
    lr: f64,
    grad_scale: f64,
    copy: Option<&Tensor>,
) -> Result<()> {
    match *spec {
        OptimizerSpec::AdamW { beta1, beta2, eps, weight_decay, decays } => {
            let step = AdamW { lr, beta1, beta2, eps, weight_decay, t: state.step + 1, grad_scale };
            let decayed = match decays {
                Decays::Matrices => state.layout.decayed,
                Decays::All => state.layout.total,
            };
            optimizer::adamw(&state.buffer, grads, decayed, &step, copy)
        }
        OptimizerSpec::Sgd { momentum } => {
            optimizer::sgd(&state.buffer, grads, &Sgd { lr, momentum, grad_scale }, copy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{random_state, values, with_buffer};

    /// With gradients of 0 and no moments an update is the decay alone, w·(1 − lr·decay).
    #[test]
    fn weight_decay_applies_to_matrices_or_to_all() {
        for decays in [Decays::Matrices, Decays::All] {
            let state = random_state(1, 2);
            let total = state.layout.total;
            let zeros = vec![0.0_f32; 2 * total];
            let weights: Vec<f32> = values(&state)[..total].iter().map(|bits| f32::from_bits(*bits)).collect();
            let state = with_buffer(&state, [weights.clone(), zeros].concat());
            let spec = OptimizerSpec::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.5, decays };
            let grads = state.weights().unwrap().zeros_like().unwrap();
            update(&state, &spec, &grads, 0.5, 1.0, None).unwrap();
            let decayed = if decays == Decays::All { total } else { state.layout.decayed };
            assert!(state.layout.decayed > 0 && state.layout.decayed < total);
            for (i, (before, after)) in weights.iter().zip(values(&state)).enumerate() {
                let factor = if i < decayed { 0.75 } else { 1.0 };
                assert_eq!(f32::from_bits(after), before * factor, "{decays:?}, element {i} of {total}");
            }
        }
    }
}
