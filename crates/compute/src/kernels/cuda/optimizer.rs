//! Optimizer steps, norms and checks of flat buffers.

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{Launch, LaunchDims, kernel_for_type};
use super::loss;
use crate::gpu;
use crate::kernels::cpu::optimizer::{AdamW, Sgd};
use crate::kernels::on_host;

/// `state` is weights, first and second moment, f32 or bf16, as `grads`. `copy` (bf16, at most as long as the weights) becomes the first
/// weights rounded.
pub fn adamw(state: &Tensor, grads: &Tensor, decayed: usize, step: &AdamW, copy: Option<&Tensor>) -> Result<()> {
    let n = grads.elem_count();
    let (dtype, copied) = (state.dtype(), copied_elements(copy, n)?);
    let correction1 = 1.0 - step.beta1.powf(step.t as f64);
    let root = (1.0 - step.beta2.powf(step.t as f64)).sqrt();
    let launch = Launch::for_tensor(state)?;
    let dims = launch.dims_for_elements(n);
    let launch = launch
        .array_part("weights", state, dtype, 0, n)?
        .array_part("first moments", state, dtype, n, n)?
        .array_part("second moments", state, dtype, 2 * n, n)?
        .array("gradients", grads, dtype, n)?
        .array("copy", copy, DType::BF16, copied)?
        .longs([n, decayed, copied])
        .floats([
            step.beta1,
            step.beta2,
            1.0 - step.beta1,
            1.0 - step.beta2,
            step.lr / correction1,
            1.0 / root,
            root,
            step.eps,
            step.grad_scale,
            1.0 - step.lr * step.weight_decay,
            step.lr * step.weight_decay,
        ]);
    // SAFETY: (w, m, v, g, copy, n, decayed, copied, beta1, beta2, rest1, rest2, size, inverse, root, eps, scale, shrink, decay).
    unsafe { launch.run(&kernel_for_type("adamw", dtype)?, dims) }
}

/// `state` is weights, and a momentum buffer after them if it is longer than the gradients; the other parameters are those of `adamw`.
pub fn sgd(state: &Tensor, grads: &Tensor, step: &Sgd, copy: Option<&Tensor>) -> Result<()> {
    let n = grads.elem_count();
    let (dtype, copied) = (state.dtype(), copied_elements(copy, n)?);
    let launch = Launch::for_tensor(state)?;
    let dims = launch.dims_for_elements(n);
    let launch = launch.array_part("weights", state, dtype, 0, n)?;
    let launch = if state.elem_count() > n {
        launch.array_part("momentum", state, dtype, n, n)?
    } else {
        launch.array("momentum", None::<&Tensor>, dtype, n)?
    };
    let launch = launch
        .array("gradients", grads, dtype, n)?
        .array("copy", copy, DType::BF16, copied)?
        .longs([n, copied])
        .floats([step.lr, step.momentum, step.grad_scale]);
    // SAFETY: (w, b, g, copy, n, copied, lr, momentum, scale).
    unsafe { launch.run(&kernel_for_type("sgd", dtype)?, dims) }
}

/// The number of weights that `copy` holds. More than `n` are an error.
fn copied_elements(copy: Option<&Tensor>, n: usize) -> Result<usize> {
    match copy.map_or(0, Tensor::elem_count) {
        copied if copied > n => bail!("a copy of {copied} of {n} weights"),
        copied => Ok(copied),
    }
}

/// Σ x² in f64, left on the device: \[1\].
pub fn sum_of_squares(x: &Tensor) -> Result<Tensor> {
    const THREADS: usize = 512;
    let (n, launch) = (x.elem_count(), Launch::for_tensor(x)?);
    let blocks = n.div_ceil(THREADS * 8).clamp(1, launch.gpu.multiprocessors() * 4);
    let partial = launch.gpu.empty(DType::F64, blocks)?;
    let launch = launch.array("partial", &partial, DType::F64, blocks)?.array("x", x, x.dtype(), n)?.longs([n]);
    // SAFETY: (partial, x, n), an element of partial for each block.
    unsafe {
        launch.run(&kernel_for_type("squares", x.dtype())?, LaunchDims::linear(blocks, THREADS))?;
    }
    loss::sum(&partial)
}

/// Sets every element to zero.
pub fn clear(x: &Tensor) -> Result<()> {
    gpu::gpu_of(x)?.clear(x)
}

/// True if every element is finite: waits for the device.
pub fn all_finite(x: &Tensor) -> Result<bool> {
    let (n, launch) = (x.elem_count(), Launch::for_tensor(x)?);
    let count = launch.gpu.zeros(DType::U32, 1)?;
    let dims = launch.dims_for_elements(n);
    let launch = launch.array("count", &count, DType::U32, 1)?.array("x", x, x.dtype(), n)?.longs([n]);
    // SAFETY: (count, x, n).
    unsafe { launch.run(&kernel_for_type("count_bad", x.dtype())?, dims)? }
    Ok(on_host(&count)?.squeeze(0)?.to_scalar::<u32>()? == 0)
}
