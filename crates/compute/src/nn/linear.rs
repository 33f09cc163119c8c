//! y = x·Wᵀ + b.

use candle_core::{Result, Tensor};

use super::{GradientSink, WeightGradientTask};
use crate::kernels::{Math, matmul, pointwise};
use crate::model::Params;

/// One or several matrices that lie next to each other in flat storage, used as one.
#[derive(Debug, Clone, Copy)]
pub struct Linear {
    /// Index of the first matrix.
    pub weight: usize,
    /// How many matrices are stacked, along their output rows.
    pub stacked: usize,
    pub bias: Option<usize>,
}

impl Linear {
    /// `x`: [rows, in]. Returns [rows, out].
    pub fn forward(&self, params: &Params, x: &Tensor, math: Math) -> Result<Tensor> {
        let bias = self.bias.map(|b| params.bias(b)).transpose()?;
        matmul::linear(x, &params.stacked(self.weight, self.stacked)?, bias.as_ref(), math)
    }

    /// Returns the forward's result, and its GELU.
    pub fn forward_gelu(&self, params: &Params, x: &Tensor, math: Math) -> Result<(Tensor, Tensor)> {
        if let Some(bias) = self.bias {
            return matmul::linear_gelu(x, &params.stacked(self.weight, self.stacked)?, &params.bias(bias)?, math);
        }
        let before = self.forward(params, x, math)?;
        Ok((before.clone(), pointwise::gelu(&before, math)?))
    }

    /// `x` as in the forward, `dy`: [rows, out]. Returns dL/dx. A deferred task keeps `x` and `dy`.
    pub fn backward(
        &self,
        params: &Params,
        grads: &mut GradientSink<'_>,
        x: &Tensor,
        dy: &Tensor,
        math: Math,
    ) -> Result<Tensor> {
        grads.accept(WeightGradientTask::Linear { layer: *self, x: x.clone(), dy: dy.clone() })?;
        self.backward_input(params, dy, math)
    }

    /// The input's gradient alone.
    pub fn backward_input(&self, params: &Params, dy: &Tensor, math: Math) -> Result<Tensor> {
        matmul::linear_backward_input(dy, &params.stacked(self.weight, self.stacked)?, math)
    }

    /// The weights' gradients alone.
    pub fn backward_weight(&self, grads: &Params, x: &Tensor, dy: &Tensor) -> Result<()> {
        if let Some(bias) = self.bias {
            matmul::bias_backward(&grads.view(bias)?, dy)?;
        }
        matmul::linear_backward_weight(&grads.stacked(self.weight, self.stacked)?, dy, x)
    }
}
