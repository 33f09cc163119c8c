//! Optimizer steps, norms and checks of flat buffers.

use candle_core::{Result, Tensor};

use super::access::{on_host, write};
use super::cpu::simd::inlined;
use super::cpu::{Real, elementwise, optimizer};

pub use super::cpu::optimizer::{AdamW, Sgd};

/// One AdamW step. `state` is weights, first and second moments, of the gradients' length each, one after the other; with `bf16`, they
/// are bf16 values. On a GPU, `copy` (a bf16 tensor) becomes the first weights rounded, in the same pass.
pub fn adamw(
    state: &Tensor,
    grads: &Tensor,
    decayed: usize,
    step: &AdamW,
    bf16: bool,
    copy: Option<&Tensor>,
) -> Result<()> {
    on_gpu!(state => super::cuda::optimizer::adamw(state, grads, decayed, step, bf16, copy));
    refuse_copy(copy)?;
    with_type!(state, T; g = grads => {
        write::<T>(state, "adamw", |state| {
            let (w, moments) = state.split_at_mut(g.len());
            let (m, v) = moments.split_at_mut(g.len());
            if bf16 {
                optimizer::adamw::<T, true>(step, decayed, w, m, v, g);
            } else {
                optimizer::adamw::<T, false>(step, decayed, w, m, v, g);
            }
        })
    })
}

/// One SGD step. `state` is weights, and a momentum buffer after them if it is longer than the gradients; `bf16` and `copy` mean the same
/// as for [`adamw`].
pub fn sgd(state: &Tensor, grads: &Tensor, step: &Sgd, bf16: bool, copy: Option<&Tensor>) -> Result<()> {
    on_gpu!(state => super::cuda::optimizer::sgd(state, grads, step, bf16, copy));
    refuse_copy(copy)?;
    with_type!(state, T; g = grads => {
        write::<T>(state, "sgd", |state| {
            let (w, momentum) = state.split_at_mut(g.len());
            let momentum = (!momentum.is_empty()).then_some(momentum);
            if bf16 {
                optimizer::sgd::<T, true>(step, w, momentum, g);
            } else {
                optimizer::sgd::<T, false>(step, w, momentum, g);
            }
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
    with_type!(x, T; x = x => Ok(DeviceSum::Ready(elementwise::sum_of_squares(x))))
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
    with_type!(x, T => write::<T>(x, "clear", |x| elementwise::each(x, inlined!(|v| *v = T::ZERO))))
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

/// Rounds to bf16 values, in place.
pub fn round(x: &Tensor) -> Result<()> {
    on_gpu!(x => super::cuda::optimizer::round(x));
    with_type!(x, T => write::<T>(x, "round", elementwise::round_all))
}

/// True if every element is finite.
pub fn all_finite(x: &Tensor) -> Result<bool> {
    on_gpu!(x => super::cuda::optimizer::all_finite(x));
    with_type!(x, T; x = x => Ok(elementwise::all_finite(x)))
}
