//! Normalization of rows, also of the sum with a residual. Gains and biases are f32, statistics too.

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{Launch, of_type, warps};
use super::matmul::add_columns;
use crate::gpu::Dims;

/// Elements of a row that one thread holds: few where many threads share it.
const HELD: usize = 8;
const HELD_BY_A_WARP: usize = 32;
/// What the largest block holds.
const WIDEST: usize = 1024 * HELD;

/// LayerNorm has means and biases.
#[derive(Debug, Clone, Copy)]
struct Affine<'a> {
    weight: &'a Tensor,
    bias: Option<&'a Tensor>,
    eps: f64,
}

/// Threads of a block that holds a row.
fn holding(d: usize) -> Result<usize> {
    match d {
        1..=WIDEST => Ok(warps(d.div_ceil(HELD))),
        _ => bail!("norms of rows of {d} elements; they can have up to {WIDEST}"),
    }
}

/// Of `x`, or of x + residual, which is returned too: (sum, y, stats).
fn forward(x: &Tensor, residual: Option<&Tensor>, affine: Affine<'_>) -> Result<(Option<Tensor>, Tensor, Tensor)> {
    const LAYER: [[&str; 2]; 2] =
        [["layer_norm_warp_f32", "layer_norm_warp_bf16"], ["layer_norm_f32", "layer_norm_bf16"]];
    const RMS: [[&str; 2]; 2] = [["rms_norm_warp_f32", "rms_norm_warp_bf16"], ["rms_norm_f32", "rms_norm_bf16"]];
    let (rows, d) = x.dims2()?;
    // A warp alone needs no meeting of the block.
    let alone = d <= 32 * HELD_BY_A_WARP;
    let (threads, block) = if alone { (32, 128) } else { (holding(d)?, holding(d)?) };
    let launch = Launch::on(x)?;
    let (gpu, dtype, n) = (launch.gpu.clone(), x.dtype(), rows * d);
    let y = gpu.empty(dtype, (rows, d))?;
    let layer = affine.bias.is_some();
    let stats = if layer { gpu.empty(DType::F32, (rows, 2))? } else { gpu.empty(DType::F32, rows)? };
    let sum = if residual.is_some() { Some(gpu.empty(dtype, (rows, d))?) } else { None };
    let launch = launch
        .array("y", &y, dtype, n)?
        .array("stats", &stats, DType::F32, if layer { 2 * rows } else { rows })?
        .maybe("sum", sum.as_ref(), dtype, n)?
        .array("x", x, dtype, n)?
        .maybe("residual", residual, dtype, n)?
        .array("weight", affine.weight, DType::F32, d)?
        .maybe("bias", affine.bias, DType::F32, d)?
        .long(rows)
        .int(d)?
        .float(affine.eps)
        .int(threads)?;
    let kernels = if layer { LAYER } else { RMS };
    let which = usize::from(!alone);
    let dims = Dims::of(rows.div_ceil(block / threads), block);
    // SAFETY: (y, stats, sum, x, residual, weight, bias, rows, d, eps, threads); the blocks' threads hold a row of d elements.
    unsafe { launch.run(of_type(dtype, kernels[which])?, dims)? }
    Ok((sum, y, stats))
}

pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<(Tensor, Tensor)> {
    let (_, y, stats) = forward(x, None, Affine { weight, bias: Some(bias), eps })?;
    Ok((y, stats))
}

pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<(Tensor, Tensor)> {
    let (_, y, stats) = forward(x, None, Affine { weight, bias: None, eps })?;
    Ok((y, stats))
}

/// (x + residual, its norm, statistics) in one pass.
pub fn add_layer_norm(
    x: &Tensor,
    residual: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    eps: f64,
) -> Result<(Tensor, Tensor, Tensor)> {
    summed(forward(x, Some(residual), Affine { weight, bias: Some(bias), eps })?)
}

/// (x + residual, its norm, statistics) in one pass.
pub fn add_rms_norm(x: &Tensor, residual: &Tensor, weight: &Tensor, eps: f64) -> Result<(Tensor, Tensor, Tensor)> {
    summed(forward(x, Some(residual), Affine { weight, bias: None, eps })?)
}

fn summed((sum, y, stats): (Option<Tensor>, Tensor, Tensor)) -> Result<(Tensor, Tensor, Tensor)> {
    let Some(sum) = sum else { bail!("a norm of a sum without the sum") };
    Ok((sum, y, stats))
}

/// Gradients are added to `dweight` and, for LayerNorm, `dbias`, both f32; returns dL/dx.
fn backward(
    dweight: &Tensor,
    dbias: Option<&Tensor>,
    x: &Tensor,
    weight: &Tensor,
    stats: &Tensor,
    dy: &Tensor,
    skip: Option<&Tensor>,
) -> Result<Tensor> {
    // For blocks of up to 256 threads, which may have more registers, and for larger ones.
    const LAYER: [[&str; 2]; 2] = [
        ["layer_norm_backward_f32", "layer_norm_backward_bf16"],
        ["layer_norm_backward_block_f32", "layer_norm_backward_block_bf16"],
    ];
    const RMS: [[&str; 2]; 2] = [
        ["rms_norm_backward_f32", "rms_norm_backward_bf16"],
        ["rms_norm_backward_block_f32", "rms_norm_backward_block_bf16"],
    ];
    let (rows, d) = x.dims2()?;
    let threads = holding(d)?;
    let which = usize::from(threads > 256);
    let launch = Launch::on(x)?;
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
        .maybe("skip", skip, dtype, n)?
        .long(rows)
        .int(d)?;
    let kernels = if dbias.is_some() { LAYER } else { RMS };
    // SAFETY: (dx, partial, x, weight, stats, dy, skip, rows, d); a block's threads hold a row of d elements.
    unsafe { launch.run(of_type(dtype, kernels[which])?, Dims::of(blocks, threads))? }
    add_columns(dweight, dbias, &partial)?;
    Ok(dx)
}

pub fn layer_norm_backward(
    dweight: &Tensor,
    dbias: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    stats: &Tensor,
    dy: &Tensor,
    skip: Option<&Tensor>,
) -> Result<Tensor> {
    backward(dweight, Some(dbias), x, weight, stats, dy, skip)
}

pub fn rms_norm_backward(
    dweight: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    stats: &Tensor,
    dy: &Tensor,
    skip: Option<&Tensor>,
) -> Result<Tensor> {
    backward(dweight, None, x, weight, stats, dy, skip)
}
