//! Normalization of rows, also of the sum with a residual. Gains and biases are f32, statistics too.

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{Launch, LaunchDims, kernel_for_type, whole_warps};
use super::matmul::add_columns;
use crate::kernels::cpu::norm::statistics_per_row;

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

/// The kernel for LayerNorm or RMSNorm.
fn kernel_of_norm(has_bias: bool, suffix: &str, dtype: DType) -> Result<String> {
    kernel_for_type(&format!("{}_norm{suffix}", if has_bias { "layer" } else { "rms" }), dtype)
}

/// The norm of `x`, or of x + residual in one pass: (the sum, or `x` itself; its norm; statistics).
pub fn normalize(
    x: &Tensor,
    residual: Option<&Tensor>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<(Tensor, Tensor, Tensor)> {
    let (rows, d) = x.dims2()?;
    // A row that one warp holds needs no barrier of the block.
    let one_warp = d <= 32 * ELEMENTS_PER_LANE;
    let (threads, block) = if one_warp { (32, 128) } else { (threads_per_row(d)?, threads_per_row(d)?) };
    let launch = Launch::for_tensor(x)?;
    let (gpu, dtype, n) = (launch.gpu.clone(), x.dtype(), rows * d);
    let y = gpu.empty(dtype, (rows, d))?;
    let statistics = statistics_per_row(bias.is_some());
    let stats = gpu.empty(DType::F32, (rows, statistics))?;
    let sum = residual.map(|_| gpu.empty(dtype, (rows, d))).transpose()?;
    let launch = launch
        .array("y", &y, dtype, n)?
        .array("stats", &stats, DType::F32, rows * statistics)?
        .array("sum", sum.as_ref(), dtype, n)?
        .array("x", x, dtype, n)?
        .array("residual", residual, dtype, n)?
        .array("weight", weight, DType::F32, d)?
        .array("bias", bias, DType::F32, d)?
        .longs([rows])
        .ints([d])?
        .floats([eps])
        .ints([threads])?;
    let kernel = kernel_of_norm(bias.is_some(), if one_warp { "_warp" } else { "" }, dtype)?;
    let dims = LaunchDims::linear(rows.div_ceil(block / threads), block);
    // SAFETY: (y, stats, sum, x, residual, weight, bias, rows, d, eps, threads); the blocks' threads hold a row of d elements.
    unsafe { launch.run(&kernel, dims)? }
    Ok((sum.unwrap_or_else(|| x.clone()), y, stats))
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
    let (rows, d) = x.dims2()?;
    let threads = threads_per_row(d)?;
    let launch = Launch::for_tensor(x)?;
    let (gpu, dtype, n) = (launch.gpu.clone(), x.dtype(), rows * d);
    let vectors = statistics_per_row(dbias.is_some());
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
        .array("skip", skip, dtype, n)?
        .longs([rows])
        .ints([d])?;
    // Threads of blocks of up to 256 may have more registers than those of larger ones.
    let kernel = kernel_of_norm(dbias.is_some(), if threads > 256 { "_backward_block" } else { "_backward" }, dtype)?;
    // SAFETY: (dx, partial, x, weight, stats, dy, skip, rows, d); a block's threads hold a row of d elements.
    unsafe { launch.run(&kernel, LaunchDims::linear(blocks, threads))? }
    add_columns(dweight, dbias, &partial)?;
    Ok(dx)
}
