//! LayerNorm and RMSNorm.

use candle_core::{Result, Tensor};

use super::{BackwardPass, ForwardPass};
use crate::kernels::{Gradient, norm};
use crate::nn::Params;

/// Normalization of rows: LayerNorm with a bias, RMSNorm without one. `weight` and `bias` are indexes of parameters.
#[derive(Debug, Clone, Copy)]
pub struct Norm {
    pub weight: usize,
    pub bias: Option<usize>,
    pub eps: f64,
}

impl Norm {
    fn parameters(&self, params: &Params) -> Result<(Tensor, Option<Tensor>)> {
        Ok((params.parameter(self.weight)?, self.bias.map(|bias| params.parameter(bias)).transpose()?))
    }

    /// `x`: `[rows, d_model]`. Returns the output and the statistics for the backward.
    pub fn forward(&self, pass: ForwardPass<'_>, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let (weight, bias) = self.parameters(pass.params)?;
        let (_, y, stats) = norm::normalize(x, None, &weight, bias.as_ref(), self.eps)?;
        Ok((y, stats))
    }

    /// The forward of `x` + `residual`: the sum, the output and the statistics. `x` is used up, so that its memory is freed.
    pub fn forward_sum(&self, pass: ForwardPass<'_>, x: Tensor, residual: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
        let (weight, bias) = self.parameters(pass.params)?;
        let normed = norm::normalize(&x, Some(residual), &weight, bias.as_ref(), self.eps)?;
        // The caller's tensor is freed here, not after the layer.
        drop(x);
        Ok(normed)
    }

    /// Returns dL/dx, plus `skip`: the gradient that bypassed the norm along the residual stream. A deferred task keeps the finished
    /// gradients of weight and bias.
    pub fn backward(
        &self,
        pass: &mut BackwardPass<'_>,
        x: &Tensor,
        stats: &Tensor,
        dy: &Tensor,
        skip: Option<&Tensor>,
    ) -> Result<Gradient> {
        let weight = pass.params.parameter(self.weight)?;
        pass.grads.accumulate_vectors(pass.params, self.weight, self.bias, |dweight, dbias| {
            norm::normalize_backward(dweight, dbias, x, &weight, stats, dy, skip)
        })
    }
}
