//! Optimizer steps, norms and checks of flat buffers.

use std::cell::RefCell;
use std::ops::Range;

use candle_core::{Result, Tensor, bail};
use half::bf16;

use super::access::{in_place, on_host, write};
use super::cpu::simd::{self, inlined};
use super::cpu::{Real, Stored, element_update, elementwise};

pub use super::cpu::element_update::ElementUpdate;

/// One update of the weights number `elements` in a flat buffer, and of their moments. `state` is weights and moments, of the gradients'
/// length and type each, one after the other; the first `one_moment` weights have no second moment. `copy` (a bf16 tensor) has the first
/// weights rounded, and gets those among `elements` in the same pass.
///
/// # Errors
/// If `state` has another length, `elements` do not have the moments, or an error of the device.
pub fn update<U: ElementUpdate<SCALARS, MOMENTS>, const SCALARS: usize, const MOMENTS: usize>(
    update: &U,
    state: &Tensor,
    grads: &Tensor,
    elements: &Range<usize>,
    one_moment: usize,
    copy: Option<&Tensor>,
) -> Result<()> {
    const { assert!(MOMENTS <= 2, "a layout has places for two moments") }
    let (n, len) = (grads.elem_count(), state.elem_count());
    let skipped = if MOMENTS > 1 { one_moment } else { 0 };
    if len != (1 + MOMENTS) * n - skipped {
        bail!("{}: {len} numbers of state for {n} gradients and {MOMENTS} moments", U::KERNEL)
    }
    if elements.end > n || elements.start < skipped {
        bail!("{}: elements {elements:?} of {n}, of which {skipped} have one moment", U::KERNEL)
    }
    on_gpu!(state => super::cuda::optimizer::update(update, state, grads, elements, skipped, copy));
    with_copy(copy, |copy| {
        with_type!(state, S; g = grads => {
            write::<S>(state, U::KERNEL, |state| {
                let copy = &mut copy.borrow_mut();
                element_update::update::<S, U, SCALARS, MOMENTS>(update, elements, skipped, state, g, copy);
            })
        })
    })
}

/// Calls `update` with the elements of `copy`: none if there is none.
fn with_copy(copy: Option<&Tensor>, update: impl Fn(RefCell<&mut [bf16]>) -> Result<()>) -> Result<()> {
    let Some(copy) = copy else { return update(RefCell::new(&mut [])) };
    in_place(copy, "rounded copy", |storage, range| update(RefCell::new(&mut bf16::elements_mut(storage)?[range])))
}

/// The sum of squares.
pub fn sum_of_squares(x: &Tensor) -> Result<DeviceSum> {
    on_gpu!(x => super::cuda::optimizer::sum_of_squares(x).map(DeviceSum::Pending));
    Ok(DeviceSum::Ready(squares_by_task(x)?.iter().sum()))
}

/// Consecutive elements whose squares a CPU adds up before it adds them to others.
pub const SQUARES_TASK: usize = simd::TASK;

/// The sums of squares of each [`SQUARES_TASK`] elements of `x`, which is on the CPU: [`sum_of_squares`] adds them in order.
pub fn squares_by_task(x: &Tensor) -> Result<Vec<f64>> {
    with_type!(x, S; x = x => Ok(elementwise::squares_by_task::<S>(x)))
}

/// A number that is computed from a whole tensor.
#[derive(Debug)]
pub enum DeviceSum {
    Ready(f64),
    /// `[1]` f64 on a GPU that may not have computed it yet: reading it waits for it.
    Pending(Tensor),
}

impl DeviceSum {
    /// The number. Waits for a GPU that still computes it.
    ///
    /// # Errors
    /// An error of the device.
    pub fn read(self) -> Result<f64> {
        match self {
            Self::Ready(sum) => Ok(sum),
            Self::Pending(sum) => on_host(&sum)?.squeeze(0)?.to_scalar(),
        }
    }
}

/// The L2 norm.
pub fn norm(x: &Tensor) -> Result<f64> {
    Ok(sum_of_squares(x)?.read()?.sqrt())
}

/// Sets every element to zero.
pub fn clear(x: &Tensor) -> Result<()> {
    on_gpu!(x => crate::gpu::gpu_of(x)?.clear(x));
    with_type!(x, S => {
        write::<S>(x, "clear", |x| elementwise::each(x, inlined!(|v| *v = S::store(Real::ZERO))))
    })
}

/// True if every element is finite.
pub fn all_finite(x: &Tensor) -> Result<bool> {
    on_gpu!(x => super::cuda::optimizer::all_finite(x));
    with_type!(x, S; x = x => Ok(elementwise::all_finite::<S>(x)))
}
