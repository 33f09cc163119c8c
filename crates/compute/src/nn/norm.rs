//! LayerNorm and RMSNorm.

use candle_core::{Result, Tensor};

use super::{BackwardPass, ForwardPass};
use crate::kernels::{Gradient, norm, pointwise};
use crate::nn::Params;

/// A gain or a bias.
#[derive(Debug, Clone)]
pub enum NormVector {
    /// The parameter with this index.
    Parameter(usize),
    /// A constant plus the parameter with this index.
    Sum(Tensor, usize),
    /// A constant.
    Fixed(Tensor),
}

impl NormVector {
    pub(super) fn parameter(&self) -> Option<usize> {
        match self {
            Self::Parameter(index) | Self::Sum(_, index) => Some(*index),
            Self::Fixed(_) => None,
        }
    }

    fn value(&self, params: &Params) -> Result<Tensor> {
        match self {
            Self::Parameter(index) => params.parameter(*index),
            Self::Sum(constant, index) => {
                let sum = constant.copy()?;
                pointwise::add_assign(&sum, &params.parameter(*index)?)?;
                Ok(sum)
            }
            Self::Fixed(constant) => Ok(constant.clone()),
        }
    }
}

impl From<usize> for NormVector {
    fn from(index: usize) -> Self {
        Self::Parameter(index)
    }
}

/// Normalization of rows: LayerNorm with a bias, RMSNorm without one.
#[derive(Debug, Clone)]
pub struct Norm {
    pub gain: NormVector,
    pub bias: Option<NormVector>,
    pub eps: f64,
}

impl Norm {
    fn vectors(&self, params: &Params) -> Result<(Tensor, Option<Tensor>)> {
        Ok((self.gain.value(params)?, self.bias.as_ref().map(|bias| bias.value(params)).transpose()?))
    }

    /// `x`: `[rows, width]`. Returns the output and the statistics for the backward.
    pub fn forward(&self, pass: ForwardPass<'_>, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let (gain, bias) = self.vectors(pass.params)?;
        let (_, y, stats) = norm::normalize(x, None, &gain, bias.as_ref(), self.eps)?;
        Ok((y, stats))
    }

    /// The forward of `x` + `residual`: the sum, the output and the statistics. `x` is used up, so that its memory is freed.
    pub fn forward_sum(&self, pass: ForwardPass<'_>, x: Tensor, residual: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
        let (gain, bias) = self.vectors(pass.params)?;
        let normed = norm::normalize(&x, Some(residual), &gain, bias.as_ref(), self.eps)?;
        // The caller's tensor is freed here, not after the layer.
        drop(x);
        Ok(normed)
    }

    /// Returns dL/dx, plus `skip`: the gradient that bypassed the norm along the residual stream. A deferred task keeps the finished
    /// gradients of gain and bias.
    pub fn backward(
        &self,
        pass: &mut BackwardPass<'_>,
        x: &Tensor,
        stats: &Tensor,
        dy: &Tensor,
        skip: Option<&Tensor>,
    ) -> Result<Gradient> {
        let gain = self.gain.value(pass.params)?;
        pass.grads.accumulate_vectors(&gain, &self.gain, self.bias.as_ref(), |dgain, dbias| {
            norm::normalize_backward(dgain, dbias, x, &gain, stats, dy, skip)
        })
    }
}
