//! Matrix products of linear layers. Weights are `[out, in]`.

use candle_core::{Result, Tensor};

use super::Gradient;
use super::access::{copied, tensor, write};
use super::cpu::gemm::Mat;
use super::cpu::{Stored, elementwise};
use runner_spec::experiment::Activation;

/// x·wᵀ + bias: `[rows, in]` and `[out, in]` give `[rows, out]`.
pub fn linear(x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    on_gpu!(x => super::cuda::matmul::linear(x, w, bias));
    let (rows, inner) = x.dims2()?;
    let (out, _) = w.dims2()?;
    with_type!(x, S => {
        let bias = copied::<S>(bias)?;
        read!(S; x = x, w = w);
        tensor(S::product(Mat::new(x, rows, inner), Mat::new(w, out, inner).t(), bias.as_deref()), (rows, out))
    })
}

/// `linear`. On a GPU each row of the result begins at a multiple of 16 bytes, where there is no bias: only the functions here and
/// `loss::cross_entropy` take rows with gaps.
pub fn linear_aligned(x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    on_gpu!(x => super::cuda::matmul::linear_aligned(x, w, bias));
    linear(x, w, bias)
}

/// x·wᵀ + bias + residual: `linear`, then `pointwise::add_assign`. On a GPU in one pass.
pub fn linear_sum(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, residual: &Tensor) -> Result<Tensor> {
    on_gpu!(x => super::cuda::matmul::linear_sum(x, w, bias, residual));
    let y = linear(x, w, bias)?;
    super::pointwise::add_assign(&y, residual)?;
    Ok(y)
}

/// x·wᵀ + bias, and its GELU: `linear`, then `pointwise::gelu`. On a GPU in fewer passes.
pub fn linear_gelu(x: &Tensor, w: &Tensor, bias: &Tensor) -> Result<(Tensor, Tensor)> {
    on_gpu!(x => super::cuda::matmul::linear_gelu(x, w, bias));
    let before = linear(x, w, Some(bias))?;
    let after = super::pointwise::activate(&before, Activation::Gelu)?;
    Ok((before, after))
}

/// dL/dx = dy·w: `[rows, out]` and `[out, in]` give `[rows, in]`.
pub fn linear_backward_input(dy: &Tensor, w: &Tensor) -> Result<Tensor> {
    on_gpu!(dy => super::cuda::matmul::linear_backward_input(dy, w));
    let (rows, out) = dy.dims2()?;
    let (_, inner) = w.dims2()?;
    with_type!(dy, S; dy = dy, w = w => {
        tensor(S::product(Mat::new(dy, rows, out), Mat::new(w, out, inner), None), (rows, inner))
    })
}

/// The gradient of GELU's input `before`, `[rows, in]`, where x is its output: `linear_backward_input`, then
/// `pointwise::activate_backward`. On a GPU in one pass.
pub fn linear_backward_gelu(dy: &Tensor, w: &Tensor, before: &Tensor) -> Result<Tensor> {
    on_gpu!(dy => super::cuda::matmul::linear_backward_gelu(dy, w, before));
    let dx = linear_backward_input(dy, w)?;
    super::pointwise::activate_backward(&dx, before, Activation::Gelu)?;
    Ok(dx)
}

/// dw += dyᵀ·x, or without `adds` dw = dyᵀ·x, in the type in which kernels compute: f32 for bf16 activations.
pub fn linear_backward_weight(dw: &Tensor, dy: &Tensor, x: &Tensor, adds: bool) -> Result<()> {
    on_gpu!(dy => super::cuda::matmul::linear_backward_weight(dw, dy, x, adds));
    if !adds {
        super::optimizer::clear(dw)?;
    }
    let (rows, out) = dy.dims2()?;
    let (_, inner) = x.dims2()?;
    with_type!(dy, S; dy = dy, x = x => {
        write::<real!(S)>(dw, "linear_backward_weight", |dw| {
            S::add_product(dw, Mat::new(dy, rows, out).t(), Mat::new(x, rows, inner));
        })
    })
}

/// dbias += the column sums of dy.
pub fn bias_backward(dbias: &Tensor, dy: &Gradient) -> Result<()> {
    let Gradient { tensor: dy, row_sums } = dy;
    on_gpu!(dy => super::cuda::matmul::bias_backward(dbias, dy, row_sums.as_ref()));
    let _ = row_sums;
    with_type!(dy, S; dy = dy => {
        write::<real!(S)>(dbias, "bias_backward", |dbias| elementwise::bias_backward::<S>(dy, dbias))
    })
}
