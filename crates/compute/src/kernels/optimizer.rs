//! Optimizer steps, norms and checks of flat buffers.

use candle_core::{Result, Tensor};

use super::access::{on_host, write};
use super::cpu::simd::inlined;
use super::cpu::{Real, Stored, elementwise, optimizer};

pub use super::cpu::optimizer::{AdamW, Sgd};

/// One AdamW step. `state` is weights, first and second moments, of the gradients' length and type each, one after the other. On a GPU,
/// `copy` (a bf16 tensor) becomes the first weights rounded, in the same pass.
pub fn adamw(state: &Tensor, grads: &Tensor, decayed: usize, step: &AdamW, copy: Option<&Tensor>) -> Result<()> {
    on_gpu!(state => super::cuda::optimizer::adamw(state, grads, decayed, step, copy));
    refuse_copy(copy)?;
    with_stored!(state, S; g = grads => {
        write::<S>(state, "adamw", |state| {
            let (w, moments) = state.split_at_mut(g.len());
            let (m, v) = moments.split_at_mut(g.len());
            optimizer::adamw(step, decayed, w, m, v, g);
        })
    })
}

/// One SGD step. `state` is weights, and a momentum buffer after them if it is longer than the gradients; `copy` means the same as for
/// [`adamw`].
pub fn sgd(state: &Tensor, grads: &Tensor, step: &Sgd, copy: Option<&Tensor>) -> Result<()> {
    on_gpu!(state => super::cuda::optimizer::sgd(state, grads, step, copy));
    refuse_copy(copy)?;
    with_stored!(state, S; g = grads => {
        write::<S>(state, "sgd", |state| {
            let (w, momentum) = state.split_at_mut(g.len());
            let momentum = (!momentum.is_empty()).then_some(momentum);
            optimizer::sgd(step, w, momentum, g);
        })
    })
}

/// Refuses a copy on a CPU, where the copy has the weights' type and is refreshed by `copy_rounded`.
fn refuse_copy(copy: Option<&Tensor>) -> Result<()> {
    if copy.is_some() {
        candle_core::bail!("a bf16 copy of weights on a CPU")
    }
    Ok(())
}

/// The sum of squares.
pub fn sum_of_squares(x: &Tensor) -> Result<DeviceSum> {
    on_gpu!(x => super::cuda::optimizer::sum_of_squares(x).map(DeviceSum::Pending));
    with_stored!(x, S; x = x => Ok(DeviceSum::Ready(elementwise::sum_of_squares::<S>(x))))
}

/// A number that is computed from a whole tensor.
#[derive(Debug)]
pub enum DeviceSum {
    Ready(f64),
    /// \[1\] f64 on a GPU that may not have computed it yet: reading it waits for it.
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
    on_gpu!(x => super::cuda::optimizer::clear(x));
    with_stored!(x, S => {
        write::<S>(x, "clear", |x| elementwise::each(x, inlined!(|v| *v = S::store(<S as Stored>::Real::ZERO))))
    })
}

/// Copies `src` and rounds its first `matrices` elements to bf16 values. The others keep their precision: gains near 1 and biases enter
/// sums in f32, and a bf16 gain would not change under many updates and then jump.
pub fn copy_rounded(dst: &Tensor, src: &Tensor, matrices: usize) -> Result<()> {
    on_gpu!(dst => super::cuda::optimizer::copy_rounded(dst, src, matrices));
    with_type!(dst, T; src = src => {
        write::<T>(dst, "copy_rounded", |dst| {
            let (rounded, kept) = dst.split_at_mut(matrices);
            elementwise::zip(rounded, &src[..matrices], inlined!(|d, s| *d = s.round_bf16()));
            elementwise::zip(kept, &src[matrices..], inlined!(|d, s| *d = s));
        })
    })
}

/// True if every element is finite.
pub fn all_finite(x: &Tensor) -> Result<bool> {
    on_gpu!(x => super::cuda::optimizer::all_finite(x));
    with_stored!(x, S; x = x => Ok(elementwise::all_finite::<S>(x)))
}
