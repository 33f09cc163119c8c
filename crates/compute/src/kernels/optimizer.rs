//! Updates and measures of flat buffers.

use candle_core::{Result, Tensor};

use super::access::write;
use super::cpu::{Real, elementwise, optimizer};
use super::host::on_host;

pub use super::cpu::optimizer::{AdamW, Sgd};

/// `state` is weights, first and second moment of grads' length each, one after the other; bf16 values if `bf16`.
pub fn adamw(state: &Tensor, grads: &Tensor, decayed: usize, step: &AdamW, bf16: bool) -> Result<()> {
    adamw_copied(state, grads, decayed, step, bf16, None)
}

/// `adamw`; on a GPU, `copy` (a bf16 tensor) becomes the first weights rounded, in the same pass.
pub fn adamw_copied(
    state: &Tensor,
    grads: &Tensor,
    decayed: usize,
    step: &AdamW,
    bf16: bool,
    copy: Option<&Tensor>,
) -> Result<()> {
    on_gpu!(state => super::cuda::optimizer::adamw(state, grads, decayed, step, bf16, copy));
    without(copy)?;
    with_type!(state, T => {
        read!(T; g = grads);
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

/// `state` is weights, and a momentum buffer behind them if it is longer than the gradients; bf16 values if `bf16`.
pub fn sgd(state: &Tensor, grads: &Tensor, step: &Sgd, bf16: bool) -> Result<()> {
    sgd_copied(state, grads, step, bf16, None)
}

/// `sgd`, with `copy` as in `adamw_copied`.
pub fn sgd_copied(state: &Tensor, grads: &Tensor, step: &Sgd, bf16: bool, copy: Option<&Tensor>) -> Result<()> {
    on_gpu!(state => super::cuda::optimizer::sgd(state, grads, step, bf16, copy));
    without(copy)?;
    with_type!(state, T => {
        read!(T; g = grads);
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

/// The CPU's copy has another type, and is refreshed by `copy_rounded`.
fn without(copy: Option<&Tensor>) -> Result<()> {
    if copy.is_some() {
        candle_core::bail!("a bf16 copy of weights on a CPU")
    }
    Ok(())
}

/// The sum of squares.
pub fn squares(x: &Tensor) -> Result<f64> {
    squares_there(x)?.read()
}

/// The sum of squares, which a GPU may not have come to yet.
pub fn squares_there(x: &Tensor) -> Result<Sum> {
    on_gpu!(x => super::cuda::optimizer::squares_there(x).map(Sum::There));
    with_type!(x, T => {
        read!(T; x = x);
        Ok(Sum::Read(elementwise::sum_of_squares(x)))
    })
}

/// A number that is made of a whole tensor.
#[derive(Debug)]
pub enum Sum {
    Read(f64),
    /// \[1\] f64 on a GPU: reading it is waiting.
    There(Tensor),
}

impl Sum {
    /// # Errors
    /// That of the device.
    pub fn read(self) -> Result<f64> {
        match self {
            Self::Read(sum) => Ok(sum),
            Self::There(sum) => on_host(&sum)?.squeeze(0)?.to_scalar(),
        }
    }
}

/// The L2 norm.
pub fn norm(x: &Tensor) -> Result<f64> {
    Ok(squares(x)?.sqrt())
}

/// Sets every element to zero.
pub fn clear(x: &Tensor) -> Result<()> {
    on_gpu!(x => super::cuda::optimizer::clear(x));
    with_type!(x, T => write::<T>(x, "clear", |x| elementwise::each(x, #[inline(always)] |v| *v = T::ZERO)))
}

/// The first `matrices` elements of `src` rounded to bf16 values, the others as they are: gains near 1 and biases enter
/// sums in f32, and a bf16 gain would stand still under many updates and then jump.
pub fn copy_rounded(dst: &Tensor, src: &Tensor, matrices: usize) -> Result<()> {
    on_gpu!(dst => super::cuda::optimizer::copy_rounded(dst, src, matrices));
    with_type!(dst, T => {
        read!(T; src = src);
        write::<T>(dst, "copy_rounded", |dst| {
            let (rounded, kept) = dst.split_at_mut(matrices);
            elementwise::zip(rounded, &src[..matrices], #[inline(always)] |d, s| *d = s.round_bf16());
            elementwise::zip(kept, &src[matrices..], #[inline(always)] |d, s| *d = s);
        })
    })
}

/// Rounds to bf16 values, in place.
pub fn round(x: &Tensor) -> Result<()> {
    on_gpu!(x => super::cuda::optimizer::round(x));
    with_type!(x, T => write::<T>(x, "round", |x| elementwise::each(x, #[inline(always)] |v| *v = v.round_bf16())))
}

/// Whether every element is finite.
pub fn all_finite(x: &Tensor) -> Result<bool> {
    on_gpu!(x => super::cuda::optimizer::all_finite(x));
    with_type!(x, T => {
        read!(T; x = x);
        Ok(elementwise::all_finite(x))
    })
}
