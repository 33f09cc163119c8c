//! Normalization of rows, `[rows, d_model]`: LayerNorm where there is a bias, RMSNorm where there is none.

use candle_core::{Result, Tensor};

use super::Gradient;
use super::access::{copied, tensor, write};
use super::cpu::{Stored, norm, simd};
use super::pointwise::add_assign;

/// The norm of `x`, or of `x` + `residual`, with a gain and a bias of the type in which kernels compute (f32 beside bf16): returns the normed tensor (the sum, or `x` itself), the output, and the statistics that the
/// backward needs: `[rows, 2]` for LayerNorm, `[rows, 1]` for RMSNorm. On a GPU in one pass; on a CPU the sum is made in `x`.
pub fn normalize(
    x: &Tensor,
    residual: Option<&Tensor>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<(Tensor, Tensor, Tensor)> {
    on_gpu!(x => super::cuda::norm::normalize(x, residual, weight, bias, eps));
    if let Some(residual) = residual {
        add_assign(x, residual)?;
    }
    let (rows, d) = x.dims2()?;
    with_type!(x, S => {
        let bias = copied::<real!(S)>(bias)?;
        read!(S; values = x);
        read!(real!(S); weight = weight);
        let statistics = norm::statistics_per_row(bias.is_some());
        let (y, stats) = norm::normalize(values, weight, bias.as_deref(), eps);
        Ok((x.clone(), tensor(y, (rows, d))?, tensor(stats, (rows, statistics))?))
    })
}

/// Adds the gradient of the weight, and for LayerNorm that of the bias; returns dL/dx, plus `skip`.
pub fn normalize_backward(
    dweight: &Tensor,
    dbias: Option<&Tensor>,
    x: &Tensor,
    weight: &Tensor,
    stats: &Tensor,
    dy: &Tensor,
    skip: Option<&Tensor>,
) -> Result<Gradient> {
    on_gpu!(x => super::cuda::norm::normalize_backward(dweight, dbias, x, weight, stats, dy, skip));
    let (rows, d) = x.dims2()?;
    with_type!(x, S => {
        let (mut dw, mut db) = (<real!(S)>::zeros(d), <real!(S)>::zeros(d));
        let dx = {
            read!(S; x = x, dy = dy);
            read!(real!(S); weight = weight, stats = stats);
            read_optional!(S; skip = skip);
            let db = dbias.map(|_| db.as_mut_slice());
            norm::normalize_backward(x, weight, stats, dy, skip, &mut dw, db)
        };
        write(dweight, "normalize_backward", |sum| simd::add_rows(sum, &dw))?;
        if let Some(dbias) = dbias {
            write(dbias, "normalize_backward", |sum| simd::add_rows(sum, &db))?;
        }
        Ok(tensor(dx, (rows, d))?.into())
    })
}
