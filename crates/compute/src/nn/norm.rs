//! LayerNorm and RMSNorm.

use candle_core::{Result, Tensor};

use super::GradSink;
use crate::kernels::{Math, norm};
use crate::model::Params;

/// Normalization of rows; fields are parameter indexes and the epsilon.
#[derive(Debug, Clone, Copy)]
pub enum Norm {
    Layer { weight: usize, bias: usize, eps: f64 },
    Rms { weight: usize, eps: f64 },
}

impl Norm {
    /// `x`: [rows, d_model]. Returns the output and the statistics for the backward.
    pub fn forward(&self, params: &Params, x: &Tensor, math: Math) -> Result<(Tensor, Tensor)> {
        match *self {
            Self::Layer { weight, bias, eps } => {
                norm::layer_norm(x, &params.view(weight)?, &params.view(bias)?, eps, math)
            }
            Self::Rms { weight, eps } => norm::rms_norm(x, &params.view(weight)?, eps, math),
        }
    }

    /// The forward of `x` + `residual`: the sum, the output and the statistics. `x` is used up.
    pub fn forward_sum(
        &self,
        params: &Params,
        x: Tensor,
        residual: &Tensor,
        math: Math,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        match *self {
            Self::Layer { weight, bias, eps } => {
                norm::add_layer_norm(x, residual, &params.view(weight)?, &params.view(bias)?, eps, math)
            }
            Self::Rms { weight, eps } => norm::add_rms_norm(x, residual, &params.view(weight)?, eps, math),
        }
    }

    /// Returns dL/dx, plus `skip`: the gradient that came past the norm along the residual stream. Weight work
    /// keeps the finished gradients of weight and bias.
    pub fn backward(
        &self,
        params: &Params,
        grads: &mut GradSink<'_>,
        x: &Tensor,
        stats: &Tensor,
        dy: &Tensor,
        skip: Option<&Tensor>,
        math: Math,
    ) -> Result<Tensor> {
        match *self {
            Self::Layer { weight, bias, .. } => {
                let (dw, db) = (grads.vector(params, weight)?, grads.vector(params, bias)?);
                norm::layer_norm_backward(&dw, &db, x, &params.view(weight)?, stats, dy, skip, math)
            }
            Self::Rms { weight, .. } => {
                let dw = grads.vector(params, weight)?;
                norm::rms_norm_backward(&dw, x, &params.view(weight)?, stats, dy, skip, math)
            }
        }
    }
}
