//! Normalization of rows, also of the sum with a residual. Gains and biases are f32, statistics too.

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{Launch, LaunchDims, Norm, NormBackward, int, whole_warps};
use super::matmul::{add_columns, row_parts};
use crate::kernels::Gradient;
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

/// What the kernels of LayerNorm and RMSNorm are called.
fn kind(has_bias: bool) -> &'static str {
    if has_bias { "layer" } else { "rms" }
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
    let parameters = Norm {
        y: launch.array("y", &y, n)?,
        stats: launch.array("stats", &stats, rows * statistics)?,
        sum: launch.array("sum", sum.as_ref(), n)?,
        x: launch.array("x", x, n)?,
        residual: launch.array("residual", residual, n)?,
        weight: launch.array("weight", weight, d)?,
        bias: launch.array("bias", bias, d)?,
        rows: rows as i64,
        d: int(d)?,
        eps: eps as f32,
        threads: int(threads)?,
    };
    let name = [dtype.as_str(), kind(bias.is_some()), if one_warp { "warp" } else { "" }];
    // SAFETY: the blocks' threads hold a row of d elements.
    unsafe { launch.run_named(&name, &parameters, LaunchDims::linear(rows.div_ceil(block / threads), block))? }
    Ok((sum.unwrap_or_else(|| x.clone()), y, stats))
}

/// Gradients are added to `dweight` and, for LayerNorm, `dbias`, both f32; returns dL/dx, whose rows LayerNorm sums if they are short.
pub fn normalize_backward(
    dweight: &Tensor,
    dbias: Option<&Tensor>,
    x: &Tensor,
    weight: &Tensor,
    stats: &Tensor,
    dy: &Tensor,
    skip: Option<&Tensor>,
) -> Result<Gradient> {
    let (rows, d) = x.dims2()?;
    let threads = threads_per_row(d)?;
    let launch = Launch::for_tensor(x)?;
    let (gpu, dtype, n) = (launch.gpu.clone(), x.dtype(), rows * d);
    let (blocks, _) = row_parts(&gpu, rows, d);
    let vectors = statistics_per_row(dbias.is_some());
    // In blocks of up to 256 threads, each thread may have more registers.
    let is_narrow = threads <= 256;
    let dx = gpu.empty(dtype, (rows, d))?;
    let partial = gpu.empty(DType::F32, (blocks, vectors * d))?;
    let row_sums = (is_narrow && dbias.is_some()).then(|| gpu.empty(DType::F32, (blocks, d))).transpose()?;
    let parameters = NormBackward {
        dx: launch.array("dx", &dx, n)?,
        partial: launch.array("partial", &partial, blocks * vectors * d)?,
        sums: launch.array("row sums", row_sums.as_ref(), blocks * d)?,
        x: launch.array("x", x, n)?,
        weight: launch.array("weight", weight, d)?,
        stats: launch.array("stats", stats, vectors * rows)?,
        dy: launch.array("dy", dy, n)?,
        skip: launch.array("skip", skip, n)?,
        rows: rows as i64,
        d: int(d)?,
    };
    let name = [dtype.as_str(), kind(dbias.is_some()), if is_narrow { "" } else { "block" }];
    // SAFETY: a block's threads hold a row of d elements.
    unsafe { launch.run_named(&name, &parameters, LaunchDims::linear(blocks, threads))? }
    add_columns(dweight, dbias, &partial)?;
    Ok(Gradient { tensor: dx, row_sums })
}
