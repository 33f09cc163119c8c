//! Optimizer steps, norms and checks of flat buffers.

use std::ops::Range;

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{Launch, LaunchDims, kernel_for_type};
use super::loss;
use crate::kernels::cpu::element_update::ElementUpdate;
use crate::kernels::on_host;

/// Updates the weights number `elements` and their moments. `state` is weights and moments, f32 or bf16, as `grads`. `copy` (bf16, at most as
/// long as the weights) has the first weights rounded.
pub fn update<U: ElementUpdate<SCALARS, MOMENTS>, const SCALARS: usize, const MOMENTS: usize>(
    update: &U,
    state: &Tensor,
    grads: &Tensor,
    elements: &Range<usize>,
    copy: Option<&Tensor>,
) -> Result<()> {
    let n = grads.elem_count();
    let (dtype, copied) = (state.dtype(), copy.map_or(0, Tensor::elem_count));
    if copied > n {
        bail!("a copy of {copied} of {n} weights")
    }
    let launch = Launch::for_tensor(state)?;
    let dims = launch.dims_for_elements(elements.len());
    let launch = launch
        .array("weights and moments", state, dtype, (1 + MOMENTS) * n)?
        .array("gradients", grads, dtype, n)?
        .array("copy", copy, DType::BF16, copied)?
        .longs([n, elements.start, elements.end, copied])
        .floats(update.scalars());
    // SAFETY: (state, g, copy, n, start, end, copied, scalars...), as the kernels of optimizer.cuh take them.
    unsafe { launch.run(&kernel_for_type(U::KERNEL, dtype)?, dims) }
}

/// Σ x² in f64, left on the device: `[1]`.
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
