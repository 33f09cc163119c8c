//! y = x·Wᵀ + b.

use candle_core::{Result, Tensor};

use super::GradSink;
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

    /// The forward, and its GELU.
    pub fn forward_gelu(&self, params: &Params, x: &Tensor, math: Math) -> Result<(Tensor, Tensor)> {
        if let Some(bias) = self.bias {
            return matmul::linear_gelu(x, &params.stacked(self.weight, self.stacked)?, &params.bias(bias)?, math);
        }
        let before = self.forward(params, x, math)?;
        let after = pointwise::gelu(&before, math)?;
        Ok((before, after))
    }

    /// `x` as in the forward, `dy`: [rows, out]. Returns dL/dx. Weight work keeps both.
    pub fn backward(
        &self,
        params: &Params,
        grads: &mut GradSink<'_>,
        x: &Tensor,
        dy: &Tensor,
        math: Math,
    ) -> Result<Tensor> {
        grads.linear(*self, x, dy)?;
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
