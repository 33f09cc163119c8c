//! Optimizer steps, norms and checks of flat buffers.

use std::ops::Range;

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{CountBad, Launch, LaunchDims, Scalars, Squares, Update};
use super::loss;
use crate::kernels::cpu::element_update::ElementUpdate;
use crate::kernels::on_host;

/// Updates the weights number `elements` and their moments. `state` is weights and moments, f32 or bf16, as `grads`; the first `skipped`
/// weights have no second moment. `copy` (bf16, at most as long as the weights) has the first weights rounded.
pub fn update<U: ElementUpdate<SCALARS, MOMENTS>, const SCALARS: usize, const MOMENTS: usize>(
    update: &U,
    state: &Tensor,
    grads: &Tensor,
    elements: &Range<usize>,
    skipped: usize,
    copy: Option<&Tensor>,
) -> Result<()> {
    let n = grads.elem_count();
    let copied = copy.map_or(0, Tensor::elem_count);
    if copied > n {
        bail!("a copy of {copied} of {n} weights")
    }
    let launch = Launch::for_tensor(state)?;
    let mut scalars = Scalars { at: Default::default() };
    const { assert!(SCALARS <= size_of::<Scalars>() / size_of::<f32>(), "more scalars than optimizer.cuh has room for") }
    for (to, scalar) in scalars.at.iter_mut().zip(update.scalars()) {
        *to = scalar as f32;
    }
    let parameters = Update {
        state: launch.array("weights and moments", state, (1 + MOMENTS) * n - skipped)?,
        grads: launch.array("gradients", grads, n)?,
        copy: launch.array("copy", copy, copied)?,
        n: n as i64,
        skipped: skipped as i64,
        start: elements.start as i64,
        end: elements.end as i64,
        copied: copied as i64,
        scalars,
    };
    // SAFETY: the caller has checked that `elements` are some of the n, that they have the moments, and the length of the state.
    unsafe {
        let name = [launch.dtype.as_str(), U::KERNEL];
        launch.run_named(&name, &parameters, launch.dims_for_elements(elements.len()))
    }
}

/// Σ x² in f64, left on the device: `[1]`.
pub fn sum_of_squares(x: &Tensor) -> Result<Tensor> {
    const THREADS: usize = 512;
    let (n, launch) = (x.elem_count(), Launch::for_tensor(x)?);
    let blocks = n.div_ceil(THREADS * 8).clamp(1, launch.gpu.multiprocessors() * 4);
    let partial = launch.gpu.empty(DType::F64, blocks)?;
    let parameters =
        Squares { partial: launch.array("partial", &partial, blocks)?, x: launch.array("x", x, n)?, n: n as i64 };
    // SAFETY: an element of partial for each block.
    unsafe { launch.run(&parameters, LaunchDims::linear(blocks, THREADS))? }
    loss::sum(&partial)
}

/// True if every element is finite: waits for the device.
pub fn all_finite(x: &Tensor) -> Result<bool> {
    let (n, launch) = (x.elem_count(), Launch::for_tensor(x)?);
    let count = launch.gpu.zeros(DType::U32, 1)?;
    let parameters = CountBad { count: launch.array("count", &count, 1)?, x: launch.array("x", x, n)?, n: n as i64 };
    // SAFETY: each element is read once, for one number.
    unsafe { launch.run(&parameters, launch.dims_for_elements(n))? }
    Ok(on_host(&count)?.squeeze(0)?.to_scalar::<u32>()? == 0)
}
