//! y = x·Wᵀ + b.

use candle_core::{Result, Tensor};

use super::{BackwardPass, ForwardPass, WeightGradientTask};
use crate::kernels::{Gradient, matmul, pointwise};
use crate::nn::Params;
use runner_spec::experiment::Activation;

/// One or several matrices that lie next to each other in flat storage, used as one.
#[derive(Debug, Clone, Copy)]
pub struct Linear {
    /// Index of the first matrix.
    pub weight: usize,
    /// The number of matrices that are stacked, along their output rows.
    pub stacked: usize,
    /// Index of the first bias.
    pub bias: Option<usize>,
}

impl Linear {
    /// `x`: `[rows, in]`. Returns `[rows, out]`.
    pub fn forward(&self, ForwardPass { params, .. }: ForwardPass<'_>, x: &Tensor) -> Result<Tensor> {
        let bias = self.bias.map(|b| params.view(b, self.stacked)).transpose()?;
        matmul::linear(x, &params.view(self.weight, self.stacked)?, bias.as_ref())
    }

    /// [`Self::forward`] with aligned rows, which products and losses take.
    pub fn forward_aligned(&self, ForwardPass { params, .. }: ForwardPass<'_>, x: &Tensor) -> Result<Tensor> {
        let bias = self.bias.map(|b| params.view(b, self.stacked)).transpose()?;
        matmul::linear_aligned(x, &params.view(self.weight, self.stacked)?, bias.as_ref())
    }

    /// Returns the forward's result plus `residual`, `[rows, out]`.
    pub fn forward_sum(
        &self,
        ForwardPass { params, .. }: ForwardPass<'_>,
        x: &Tensor,
        residual: &Tensor,
    ) -> Result<Tensor> {
        let bias = self.bias.map(|b| params.view(b, self.stacked)).transpose()?;
        matmul::linear_sum(x, &params.view(self.weight, self.stacked)?, bias.as_ref(), residual)
    }

    /// Returns the forward's result, and the activation function of it.
    pub fn forward_activated(
        &self,
        pass: ForwardPass<'_>,
        x: &Tensor,
        activation: Activation,
    ) -> Result<(Tensor, Tensor)> {
        let params = pass.params;
        if let (Activation::Gelu, Some(bias)) = (activation, self.bias) {
            return matmul::linear_gelu(x, &params.view(self.weight, self.stacked)?, &params.view(bias, self.stacked)?);
        }
        let before = self.forward(pass, x)?;
        Ok((before.clone(), pointwise::activate(&before, activation)?))
    }

    /// `x` is the forward's input, `dy`: `[rows, out]`. Returns dL/dx. A deferred task keeps `x` and `dy`.
    pub fn backward(&self, pass: &mut BackwardPass<'_>, x: &Tensor, dy: &Gradient) -> Result<Tensor> {
        pass.grads.accept(WeightGradientTask::Linear { layer: *self, x: x.clone(), dy: dy.clone() })?;
        matmul::linear_backward_input(&dy.tensor, &pass.params.view(self.weight, self.stacked)?)
    }

    /// [`Self::backward`] where `x` is the GELU of `before`. Returns the gradient of `before`.
    pub fn backward_gelu(
        &self,
        pass: &mut BackwardPass<'_>,
        x: &Tensor,
        before: &Tensor,
        dy: &Gradient,
    ) -> Result<Tensor> {
        pass.grads.accept(WeightGradientTask::Linear { layer: *self, x: x.clone(), dy: dy.clone() })?;
        matmul::linear_backward_gelu(&dy.tensor, &pass.params.view(self.weight, self.stacked)?, before)
    }

    /// Adds the weights' gradients.
    pub fn backward_weight(&self, grads: &Params, x: &Tensor, dy: &Gradient) -> Result<()> {
        if let Some(bias) = self.bias {
            grads.accumulate(bias, self.stacked, |dbias| matmul::bias_backward(dbias, dy))?;
        }
        let adds = !grads.take_outdated(self.weight, self.stacked);
        grads.accumulate(self.weight, self.stacked, |dw| matmul::linear_backward_weight(dw, &dy.tensor, x, adds))
    }
}
