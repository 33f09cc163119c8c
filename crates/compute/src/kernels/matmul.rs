//! Matrix products of linear layers. Weights are [out, in].

use candle_core::{Result, Tensor};

use super::access::{StoredPrecision, tensor, write};
use super::cpu::gemm::{Mat, gemm, pool};
use super::cpu::{Real, elementwise};
use runner_spec::experiment::Activation;

/// x·wᵀ + bias: [rows, in] and [out, in] give [rows, out].
pub fn linear(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, precision: StoredPrecision) -> Result<Tensor> {
    on_gpu!(x => super::cuda::matmul::linear(x, w, bias));
    let (rows, inner) = x.dims2()?;
    let (out, _) = w.dims2()?;
    with_type!(x, T; x = x, w = w => {
        let mut y = vec![T::ZERO; rows * out];
        gemm(&mut y, out, T::ZERO, T::ONE, Mat::new(x, rows, inner), Mat::new(w, out, inner).t(), pool());
        read_optional!(T; bias = bias);
        match bias {
            Some(bias) => elementwise::add_bias(&mut y, bias, precision.bf16),
            None if precision.bf16 => elementwise::round_all(&mut y),
            None => {}
        }
        tensor(y, (rows, out))
    })
}

/// x·wᵀ + bias, and its GELU: `linear`, then `pointwise::gelu`. On a GPU in fewer passes.
pub fn linear_gelu(x: &Tensor, w: &Tensor, bias: &Tensor, precision: StoredPrecision) -> Result<(Tensor, Tensor)> {
    on_gpu!(x => super::cuda::matmul::linear_gelu(x, w, bias));
    let before = linear(x, w, Some(bias), precision)?;
    let after = super::pointwise::activate(&before, Activation::Gelu, precision)?;
    Ok((before, after))
}

/// dL/dx = dy·w: [rows, out] and [out, in] give [rows, in].
pub fn linear_backward_input(dy: &Tensor, w: &Tensor, precision: StoredPrecision) -> Result<Tensor> {
    on_gpu!(dy => super::cuda::matmul::linear_backward_input(dy, w));
    let (rows, out) = dy.dims2()?;
    let (_, inner) = w.dims2()?;
    with_type!(dy, T; dy = dy, w = w => {
        let mut dx = vec![T::ZERO; rows * inner];
        gemm(&mut dx, inner, T::ZERO, T::ONE, Mat::new(dy, rows, out), Mat::new(w, out, inner), pool());
        if precision.bf16 {
            elementwise::round_all(&mut dx);
        }
        tensor(dx, (rows, inner))
    })
}

/// dw += dyᵀ·x, not rounded.
pub fn linear_backward_weight(dw: &Tensor, dy: &Tensor, x: &Tensor) -> Result<()> {
    on_gpu!(dy => super::cuda::matmul::linear_backward_weight(dw, dy, x));
    let (rows, out) = dy.dims2()?;
    let (_, inner) = x.dims2()?;
    with_type!(dw, T; dy = dy, x = x => {
        write::<T>(dw, "linear_backward_weight", |dw| {
            gemm(dw, inner, T::ONE, T::ONE, Mat::new(dy, rows, out).t(), Mat::new(x, rows, inner), pool());
        })
    })
}

/// dbias += the column sums of dy.
pub fn bias_backward(dbias: &Tensor, dy: &Tensor) -> Result<()> {
    on_gpu!(dy => super::cuda::matmul::bias_backward(dbias, dy));
    with_type!(dbias, T; dy = dy => write::<T>(dbias, "bias_backward", |dbias| elementwise::bias_backward(dy, dbias)))
}
