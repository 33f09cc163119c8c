//! Normalization of rows, also of the sum with a residual. Gains and biases are f32, statistics too.

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{Launch, kernel_for_type, typed, whole_warps};
use super::matmul::add_columns;
use crate::gpu::LaunchDims;

/// Elements of a row that one thread holds, where a block or where one warp holds the row.
const ELEMENTS_PER_THREAD: usize = 8;
const ELEMENTS_PER_LANE: usize = 32;
/// The longest row that a block can hold.
const MAX_ROW: usize = 1024 * ELEMENTS_PER_THREAD;

/// Threads of a block that holds a row of `d` elements.
fn threads_per_row(d: usize) -> Result<usize> {
    match d {
        1..=MAX_ROW => Ok(whole_warps(d.div_ceil(ELEMENTS_PER_THREAD))),
        _ => bail!("norms of rows of {d} elements; they can have up to {MAX_ROW}"),
    }
}

/// The norm of `x`, or of x + residual, which is returned too: (sum, y, stats).
fn forward(
    x: &Tensor,
    residual: Option<&Tensor>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<(Option<Tensor>, Tensor, Tensor)> {
    const LAYER: [[&str; 2]; 2] = [typed!("layer_norm_warp"), typed!("layer_norm")];
    const RMS: [[&str; 2]; 2] = [typed!("rms_norm_warp"), typed!("rms_norm")];
    let (rows, d) = x.dims2()?;
    // A row that one warp holds needs no barrier of the block.
    let one_warp = d <= 32 * ELEMENTS_PER_LANE;
    let (threads, block) = if one_warp { (32, 128) } else { (threads_per_row(d)?, threads_per_row(d)?) };
    let launch = Launch::for_tensor(x)?;
    let (gpu, dtype, n) = (launch.gpu.clone(), x.dtype(), rows * d);
    let y = gpu.empty(dtype, (rows, d))?;
    let statistics: usize = if bias.is_some() { 2 } else { 1 };
    let stats = gpu.empty(DType::F32, (rows, statistics))?;
    let sum = if residual.is_some() { Some(gpu.empty(dtype, (rows, d))?) } else { None };
    let launch = launch
        .array("y", &y, dtype, n)?
        .array("stats", &stats, DType::F32, rows * statistics)?
        .optional_array("sum", sum.as_ref(), dtype, n)?
        .array("x", x, dtype, n)?
        .optional_array("residual", residual, dtype, n)?
        .array("weight", weight, DType::F32, d)?
        .optional_array("bias", bias, DType::F32, d)?
        .longs([rows])
        .ints([d])?
        .floats([eps])
        .ints([threads])?;
    let kernels = if bias.is_some() { LAYER } else { RMS };
    let which = usize::from(!one_warp);
    let dims = LaunchDims::linear(rows.div_ceil(block / threads), block);
    // SAFETY: (y, stats, sum, x, residual, weight, bias, rows, d, eps, threads); the blocks' threads hold a row of d elements.
    unsafe { launch.run(kernel_for_type(dtype, kernels[which])?, dims)? }
    Ok((sum, y, stats))
}

pub fn normalize(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, eps: f64) -> Result<(Tensor, Tensor)> {
    let (_, y, stats) = forward(x, None, weight, bias, eps)?;
    Ok((y, stats))
}

/// (x + residual, its norm, statistics) in one pass.
pub fn add_and_normalize(
    x: &Tensor,
    residual: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<(Tensor, Tensor, Tensor)> {
    match forward(x, Some(residual), weight, bias, eps)? {
        (Some(sum), y, stats) => Ok((sum, y, stats)),
        (None, ..) => bail!("a norm of a sum without the sum"),
    }
}

/// Gradients are added to `dweight` and, for LayerNorm, `dbias`, both f32; returns dL/dx.
pub fn normalize_backward(
    dweight: &Tensor,
    dbias: Option<&Tensor>,
    x: &Tensor,
    weight: &Tensor,
    stats: &Tensor,
    dy: &Tensor,
    skip: Option<&Tensor>,
) -> Result<Tensor> {
    // For blocks of up to 256 threads, which may have more registers, and for larger ones.
    const LAYER: [[&str; 2]; 2] = [typed!("layer_norm_backward"), typed!("layer_norm_backward_block")];
    const RMS: [[&str; 2]; 2] = [typed!("rms_norm_backward"), typed!("rms_norm_backward_block")];
    let (rows, d) = x.dims2()?;
    let threads = threads_per_row(d)?;
    let which = usize::from(threads > 256);
    let launch = Launch::for_tensor(x)?;
    let (gpu, dtype, n) = (launch.gpu.clone(), x.dtype(), rows * d);
    let vectors = 1 + usize::from(dbias.is_some());
    // Enough blocks to keep memory busy; more would only make more partial sums.
    let blocks = (gpu.multiprocessors() * (768 / threads).clamp(1, 8)).min(rows).max(1);
    let dx = gpu.empty(dtype, (rows, d))?;
    let partial = gpu.empty(DType::F32, (blocks, vectors * d))?;
    let launch = launch
        .array("dx", &dx, dtype, n)?
        .array("partial", &partial, DType::F32, blocks * vectors * d)?
        .array("x", x, dtype, n)?
        .array("weight", weight, DType::F32, d)?
        .array("stats", stats, DType::F32, vectors * rows)?
        .array("dy", dy, dtype, n)?
        .optional_array("skip", skip, dtype, n)?
        .longs([rows])
        .ints([d])?;
    let kernels = if dbias.is_some() { LAYER } else { RMS };
    // SAFETY: (dx, partial, x, weight, stats, dy, skip, rows, d); a block's threads hold a row of d elements.
    unsafe { launch.run(kernel_for_type(dtype, kernels[which])?, LaunchDims::linear(blocks, threads))? }
    add_columns(dweight, dbias, &partial)?;
    Ok(dx)
}
