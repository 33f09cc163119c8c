//! One optimizer step over the whole flat state.

use candle_core::{Result, Tensor};

use crate::exec::TrainState;
use crate::kernels::optimizer::{self, AdamW, Sgd};
use crate::plan::program::{Decays, OptimizerSpec};

/// The factor that brings gradients of L2 norm `norm` to at most `max`, as PyTorch's `clip_grad_norm_` computes it.
#[must_use]
pub fn clip_scale(norm: f64, max: Option<f64>) -> f64 {
    match max {
        Some(max) => (max / (norm + 1e-6)).min(1.0),
        None => 1.0,
    }
}

/// Updates the weights and moments in `state` with `grad_scale`·`grads` ([layout.total]) at learning rate `lr`.
/// `state.step` counts the updates before this one.
pub fn update(state: &TrainState, spec: &OptimizerSpec, grads: &Tensor, lr: f64, grad_scale: f64) -> Result<()> {
    match *spec {
        OptimizerSpec::AdamW { beta1, beta2, eps, weight_decay, decays } => {
            let step = AdamW { lr, beta1, beta2, eps, weight_decay, t: state.step + 1, grad_scale };
            let decayed = match decays {
                Decays::Matrices => state.layout.decayed,
                Decays::All => state.layout.total,
            };
            optimizer::adamw(&state.buffer, grads, decayed, &step)
        }
        OptimizerSpec::Sgd { momentum } => optimizer::sgd(&state.buffer, grads, &Sgd { lr, momentum, grad_scale }),
    }
}
