//! Normalization of rows, [rows, d_model].

use candle_core::{Result, Tensor};

use super::access::{Math, tensor, write};
use super::cpu::{Real, norm};
use super::pointwise::add_assign;

/// Returns the output and the statistics that the backward needs, [rows, 2].
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64, math: Math) -> Result<(Tensor, Tensor)> {
    on_gpu!(x => super::cuda::norm::layer_norm(x, weight, bias, eps));
    let (rows, d) = x.dims2()?;
    with_type!(x, T => {
        read!(T; x = x, weight = weight, bias = bias);
        let (mut y, mut stats) = (vec![T::ZERO; rows * d], vec![T::ZERO; rows * 2]);
        norm::layer_norm(x, weight, bias, eps, &mut y, &mut stats, math.bf16);
        Ok((tensor(y, (rows, d))?, tensor(stats, (rows, 2))?))
    })
}

/// Adds weight and bias gradients; returns dL/dx, plus `skip`.
pub fn layer_norm_backward(
    dweight: &Tensor,
    dbias: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    stats: &Tensor,
    dy: &Tensor,
    skip: Option<&Tensor>,
    math: Math,
) -> Result<Tensor> {
    on_gpu!(x => super::cuda::norm::layer_norm_backward(dweight, dbias, x, weight, stats, dy, skip));
    let (rows, d) = x.dims2()?;
    with_type!(x, T => {
        let mut dx = vec![T::ZERO; rows * d];
        let (mut dw, mut db) = (vec![T::ZERO; d], vec![T::ZERO; d]);
        {
            read!(T; x = x, weight = weight, stats = stats, dy = dy);
            read_optional!(T; skip = skip);
            norm::layer_norm_backward(x, weight, stats, dy, skip, &mut dx, &mut dw, &mut db, math.bf16);
        }
        add_vector(dweight, &dw)?;
        add_vector(dbias, &db)?;
        tensor(dx, (rows, d))
    })
}

/// Returns the output and the statistics that the backward needs, \[rows\].
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64, math: Math) -> Result<(Tensor, Tensor)> {
    on_gpu!(x => super::cuda::norm::rms_norm(x, weight, eps));
    let (rows, d) = x.dims2()?;
    with_type!(x, T => {
        read!(T; x = x, weight = weight);
        let (mut y, mut stats) = (vec![T::ZERO; rows * d], vec![T::ZERO; rows]);
        norm::rms_norm(x, weight, eps, &mut y, &mut stats, math.bf16);
        Ok((tensor(y, (rows, d))?, tensor(stats, rows)?))
    })
}

/// Adds the weight gradient; returns dL/dx, plus `skip`.
pub fn rms_norm_backward(
    dweight: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    stats: &Tensor,
    dy: &Tensor,
    skip: Option<&Tensor>,
    math: Math,
) -> Result<Tensor> {
    on_gpu!(x => super::cuda::norm::rms_norm_backward(dweight, x, weight, stats, dy, skip));
    let (rows, d) = x.dims2()?;
    with_type!(x, T => {
        let mut dx = vec![T::ZERO; rows * d];
        let mut dw = vec![T::ZERO; d];
        {
            read!(T; x = x, weight = weight, stats = stats, dy = dy);
            read_optional!(T; skip = skip);
            norm::rms_norm_backward(x, weight, stats, dy, skip, &mut dx, &mut dw, math.bf16);
        }
        add_vector(dweight, &dw)?;
        tensor(dx, (rows, d))
    })
}

/// `x` + `residual`, and its LayerNorm: (sum, output, statistics). On a GPU in one pass; on a CPU the sum is made in `x`.
pub fn add_layer_norm(
    x: Tensor,
    residual: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    eps: f64,
    math: Math,
) -> Result<(Tensor, Tensor, Tensor)> {
    on_gpu!(x => super::cuda::norm::add_layer_norm(&x, residual, weight, bias, eps));
    add_assign(&x, residual, math)?;
    let (y, stats) = layer_norm(&x, weight, bias, eps, math)?;
    Ok((x, y, stats))
}

/// `x` + `residual`, and its RMSNorm, as `add_layer_norm`.
pub fn add_rms_norm(
    x: Tensor,
    residual: &Tensor,
    weight: &Tensor,
    eps: f64,
    math: Math,
) -> Result<(Tensor, Tensor, Tensor)> {
    on_gpu!(x => super::cuda::norm::add_rms_norm(&x, residual, weight, eps));
    add_assign(&x, residual, math)?;
    let (y, stats) = rms_norm(&x, weight, eps, math)?;
    Ok((x, y, stats))
}

fn add_vector<T: Real>(dst: &Tensor, src: &[T]) -> Result<()> {
    write::<T>(dst, "add_vector", |dst| {
        for (d, &s) in dst.iter_mut().zip(src) {
            *d += s;
        }
    })
}
