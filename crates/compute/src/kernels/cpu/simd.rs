//! Vector width at run time, task sizes, and reductions in a fixed order.

use std::mem::MaybeUninit;

use super::{Real, Stored};

/// Elements a task works on, unless a row is longer: few enough to balance, enough to pay for a task.
pub const TASK: usize = 16_384;

/// Accumulators of a reduction; one AVX-512 register of f32.
pub const LANES: usize = 16;

/// A closure that is compiled into its caller.
///
/// Every closure that `vectorize` runs, directly or through a different closure, must be such a closure: one that is not inlined is compiled
/// for the oldest processor, and each fused multiply-add in it becomes a function call.
macro_rules! inlined {
    (|| $body:expr) => {{
        #[inline(always)]
        || $body
    }};
    (|$($argument:ident $(: $type:ty)?),+| $body:expr) => {{
        #[inline(always)]
        |$($argument $(: $type)?),+| $body
    }};
}
pub(in crate::kernels) use inlined;

/// Runs `f`, an `inlined!` closure, compiled for the widest vectors that this processor has.
#[inline(always)]
pub fn vectorize<R>(f: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(f)
}

/// The instruction set for which [`vectorize`] compiles on this processor; `baseline` is that of every processor of its architecture.
pub fn instruction_set() -> &'static str {
    match pulp::Arch::new() {
        #[cfg(target_arch = "x86_64")]
        pulp::Arch::V4(_) => "AVX-512",
        #[cfg(target_arch = "x86_64")]
        pulp::Arch::V3(_) => "AVX2",
        #[cfg(target_arch = "aarch64")]
        pulp::Arch::Neon(_) => "NEON",
        _ => "baseline",
    }
}

/// The instruction set of products of f32 matrices: `gemm` chooses its kernels by the same features of the processor.
pub fn matmul_instruction_set() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            "AVX-512F"
        } else if is_x86_feature_detected!("fma") {
            "FMA"
        } else {
            "baseline"
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        "NEON"
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        "baseline"
    }
}

/// Rows of `width` elements that make up one task.
pub fn rows_per_task(width: usize) -> usize {
    (TASK / width.max(1)).max(1)
}

#[inline(always)]
fn fold<T: Real>(mut acc: [T; LANES], join: impl Fn(T, T) -> T) -> T {
    let mut n = LANES / 2;
    while n > 0 {
        for i in 0..n {
            acc[i] = join(acc[i], acc[i + n]);
        }
        n /= 2;
    }
    acc[0]
}

/// Σ f(x).
#[inline(always)]
pub fn sum_by<S: Copy, T: Real>(x: &[S], f: impl Fn(S) -> T) -> T {
    let mut acc = [T::ZERO; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for c in chunks {
        for i in 0..LANES {
            acc[i] += f(c[i]);
        }
    }
    for (a, &v) in acc.iter_mut().zip(rest) {
        *a += f(v);
    }
    fold(acc, |a, b| a + b)
}

/// Σ x·y.
#[inline(always)]
pub fn dot<X: Stored, Y: Stored<Real = X::Real>>(x: &[X], y: &[Y]) -> X::Real {
    let mut acc = [X::Real::ZERO; LANES];
    let (xs, x_rest) = x.as_chunks::<LANES>();
    let (ys, y_rest) = y.as_chunks::<LANES>();
    for (a, b) in xs.iter().zip(ys) {
        for i in 0..LANES {
            acc[i] = a[i].load().fma(b[i].load(), acc[i]);
        }
    }
    for ((acc, &u), &v) in acc.iter_mut().zip(x_rest).zip(y_rest) {
        *acc = u.load().fma(v.load(), *acc);
    }
    fold(acc, |a, b| a + b)
}

/// The largest element.
#[inline(always)]
pub fn max<S: Stored>(x: &[S]) -> S::Real {
    let mut acc = [S::Real::LOWEST; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for c in chunks {
        for i in 0..LANES {
            acc[i] = c[i].load().larger(acc[i]);
        }
    }
    for (a, &v) in acc.iter_mut().zip(rest) {
        *a = v.load().larger(*a);
    }
    fold(acc, Real::larger)
}

/// y += a·x.
#[inline(always)]
pub fn axpy<S: Stored>(a: S::Real, x: &[S], y: &mut [S::Real]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = a.fma(x.load(), *y);
    }
}

/// Adds the rows of `rows` (`[n, width]`) to `out`, in order.
pub fn add_rows<S: Stored>(out: &mut [S::Real], rows: &[S]) {
    vectorize(inlined!(|| {
        for row in rows.chunks_exact(out.len()) {
            for (o, &v) in out.iter_mut().zip(row) {
                *o += v.load();
            }
        }
    }));
}

/// A pointer that tasks share to write disjoint parts of one buffer.
#[derive(Clone, Copy)]
pub struct Shared<T>(*mut T);

// SAFETY: code that dereferences the pointer must do so for disjoint parts in each task.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: code that dereferences the pointer must do so for disjoint parts in each task.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub fn new(slice: &mut [T]) -> Self {
        Self(slice.as_mut_ptr())
    }

    /// Elements that have not been written yet.
    pub fn unwritten(elements: &mut [MaybeUninit<T>]) -> Self {
        Self(elements.as_mut_ptr().cast())
    }

    /// The address of the element `offset`.
    #[inline(always)]
    pub fn pointer(self, offset: usize) -> *mut T {
        self.0.wrapping_add(offset)
    }

    /// `len` elements from `offset` on.
    ///
    /// # Safety
    /// They lie in the buffer, and belong to the calling task alone while the slice lives.
    #[inline(always)]
    pub unsafe fn slice<'a>(self, offset: usize, len: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(offset), len) }
    }

    /// [`Self::slice`] of elements that may be uninitialized.
    ///
    /// # Safety
    /// As for [`Self::slice`].
    #[inline(always)]
    pub unsafe fn uninitialized<'a>(self, offset: usize, len: usize) -> &'a mut [MaybeUninit<T>] {
        // SAFETY: the caller's promise; any memory is a valid `MaybeUninit`.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(offset).cast(), len) }
    }
}
