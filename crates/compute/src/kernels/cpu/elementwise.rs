//! Kernels of one pass over memory: sums, scaling, rounding, bias, norms of flat buffers.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use super::pieces::Pieces;
use super::simd::{self, TASK, inlined, rows_per_task, sum_by, vectorize};
use super::{Real, Stored};

/// The `len` elements that `write` writes, without zeros before.
///
/// # Safety
/// `write` must write all of them.
pub unsafe fn written<D>(len: usize, write: impl FnOnce(&mut [MaybeUninit<D>])) -> Vec<D> {
    let mut elements = Vec::with_capacity(len);
    write(&mut elements.spare_capacity_mut()[..len]);
    // SAFETY: the caller's promise.
    unsafe { elements.set_len(len) };
    elements
}

/// `f` of each element.
pub fn map<D: Stored, S: Stored>(src: &[S], f: impl Fn(S) -> D + Sync) -> Vec<D> {
    let write = |dst: &mut [MaybeUninit<D>]| {
        dst.par_chunks_mut(TASK).zip(src.par_chunks(TASK)).for_each_piece(|(d, s)| {
            vectorize(inlined!(|| map_chunk(d, s, &f)));
        });
    };
    // SAFETY: the chunks are those of all elements.
    unsafe { written(src.len(), write) }
}

/// [`map`] of a part. As arguments of a function the slices are known not to overlap.
#[inline(always)]
fn map_chunk<D, S: Copy>(dst: &mut [MaybeUninit<D>], src: &[S], f: impl Fn(S) -> D) {
    for (d, &s) in dst.iter_mut().zip(src) {
        d.write(f(s));
    }
}

/// Applies `f(dst, src)` element by element.
pub fn zip<D: Stored, S: Stored>(dst: &mut [D], src: &[S], f: impl Fn(&mut D, S) + Sync) {
    dst.par_chunks_mut(TASK).zip(src.par_chunks(TASK)).for_each_piece(|(d, s)| {
        vectorize(inlined!(|| {
            for (d, &s) in d.iter_mut().zip(s) {
                f(d, s);
            }
        }));
    });
}

/// Numbers that [`map_real`] and [`zip_real`] convert at once.
const CONVERTED: usize = 256;

/// `f` of each number. bf16 is converted in separate loops: a loop that both converts and computes is slower.
pub fn map_real<S: Stored>(src: &[S], f: impl Fn(S::Real) -> S::Real + Sync) -> Vec<S> {
    if !S::IS_BF16 {
        return map(src, inlined!(|v: S| S::store(f(v.load()))));
    }
    let write = |dst: &mut [MaybeUninit<S>]| {
        dst.par_chunks_mut(TASK).zip(src.par_chunks(TASK)).for_each_piece(|(d, s)| {
            vectorize(inlined!(|| {
                let mut numbers = [S::Real::ZERO; CONVERTED];
                for (d, s) in d.chunks_mut(CONVERTED).zip(s.chunks(CONVERTED)) {
                    let numbers = load_all(&mut numbers, s);
                    for v in numbers.iter_mut() {
                        *v = f(*v);
                    }
                    map_chunk(d, numbers, inlined!(|v| S::store(v)));
                }
            }));
        });
    };
    // SAFETY: the chunks are those of all elements.
    unsafe { written(src.len(), write) }
}

/// `dst` becomes `f(dst, src)`, number by number, as in [`map_real`].
pub fn zip_real<S: Stored>(dst: &mut [S], src: &[S], f: impl Fn(S::Real, S::Real) -> S::Real + Sync) {
    if !S::IS_BF16 {
        return zip(dst, src, inlined!(|d: &mut S, s: S| *d = S::store(f(d.load(), s.load()))));
    }
    dst.par_chunks_mut(TASK).zip(src.par_chunks(TASK)).for_each_piece(|(d, s)| {
        vectorize(inlined!(|| {
            let mut numbers = [[S::Real::ZERO; CONVERTED]; 2];
            for (d, s) in d.chunks_mut(CONVERTED).zip(s.chunks(CONVERTED)) {
                let [old, other] = &mut numbers;
                let (old, other) = (load_all(old, d), load_all(other, s));
                for (old, &other) in old.iter_mut().zip(other.iter()) {
                    *old = f(*old, other);
                }
                for (d, &v) in d.iter_mut().zip(old.iter()) {
                    *d = S::store(v);
                }
            }
        }));
    });
}

/// The numbers of `src`, in `numbers`.
#[inline(always)]
fn load_all<'a, S: Stored>(numbers: &'a mut [S::Real; CONVERTED], src: &[S]) -> &'a mut [S::Real] {
    let numbers = &mut numbers[..src.len()];
    for (number, &v) in numbers.iter_mut().zip(src) {
        *number = v.load();
    }
    numbers
}

/// Applies `f` to each element.
pub fn each<S: Stored>(dst: &mut [S], f: impl Fn(&mut S) + Sync) {
    dst.par_chunks_mut(TASK).for_each_piece(|d| {
        vectorize(inlined!(|| d.iter_mut().for_each(&f)));
    });
}

/// Columns `from .. from + width` of the rows of `x`, which have `stride` elements.
pub fn take_columns<S: Stored>(x: &[S], stride: usize, from: usize, width: usize) -> Vec<S> {
    assert!(from + width <= stride && x.len().is_multiple_of(stride), "columns beyond their rows");
    let rows = rows_per_task(width);
    let write = |taken: &mut [MaybeUninit<S>]| {
        taken.par_chunks_mut(rows * width).zip(x.par_chunks(rows * stride)).for_each_piece(|(taken, x)| {
            for (taken, row) in taken.chunks_exact_mut(width).zip(x.chunks_exact(stride)) {
                taken.write_copy_of_slice(&row[from..from + width]);
            }
        });
    };
    // SAFETY: all rows are written.
    unsafe { written(x.len() / stride * width, write) }
}

/// Copies the rows of `part`, which have `width` elements, into the columns of `x` from `from` on.
pub fn put_columns<S: Stored>(x: &mut [S], stride: usize, from: usize, part: &[S], width: usize) {
    assert!(from + width <= stride && x.len() / stride == part.len() / width, "columns beyond their rows");
    let rows = rows_per_task(width);
    x.par_chunks_mut(rows * stride).zip(part.par_chunks(rows * width)).for_each_piece(|(x, part)| {
        for (row, part) in x.chunks_exact_mut(stride).zip(part.chunks_exact(width)) {
            row[from..from + width].copy_from_slice(part);
        }
    });
}

/// Adds the column sums of `dy` (`[rows, dbias.len()]`) to `dbias`.
pub fn bias_backward<S: Stored>(dy: &[S], dbias: &mut [S::Real]) {
    let width = dbias.len();
    let rows = rows_per_task(width) * 4;
    let mut partial = S::Real::zeros(dy.len().div_ceil(rows * width) * width);
    partial.par_chunks_mut(width).zip(dy.par_chunks(rows * width)).for_each_piece(|(p, dy)| simd::add_rows(p, dy));
    simd::add_rows(dbias, &partial);
}

/// Σ x² of each task's elements.
pub fn squares_by_task<S: Stored>(x: &[S]) -> Vec<f64> {
    let squares = |c: &[S]| vectorize(inlined!(|| { sum_by(c, inlined!(|v| v.load() * v.load())) })).double();
    let mut all = vec![0.0; x.len().div_ceil(TASK)];
    all.par_iter_mut().zip(x.par_chunks(TASK)).for_each_piece(|(sum, chunk)| *sum = squares(chunk));
    all
}

/// True if every element is finite.
pub fn all_finite<S: Stored>(x: &[S]) -> bool {
    // 0·x is 0 for finite x and NaN otherwise, and the sum keeps that.
    let zeros = |c: &[S]| vectorize(inlined!(|| { sum_by(c, inlined!(|v| S::Real::ZERO * v.load())) }));
    let all = AtomicBool::new(true);
    x.par_chunks(TASK).for_each_piece(|chunk| {
        if zeros(chunk) != S::Real::ZERO {
            all.store(false, Ordering::Relaxed);
        }
    });
    all.into_inner()
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn numbers_that_are_converted_at_once_have_the_bits_of_each_alone() {
        for len in [0, 1, CONVERTED - 1, CONVERTED, CONVERTED + 1, TASK - 1, TASK, TASK + 300] {
            let numbers =
                |step: usize| (0..len).map(|i| bf16::store((i * step % 1009) as f32 - 504.0)).collect::<Vec<_>>();
            let (x, mut y) = (numbers(7919), numbers(104_729));
            let expected: Vec<bf16> = x.iter().map(|v| bf16::store(v.load() * 1.7)).collect();
            assert_eq!(map_real(&x, |v| v * 1.7), expected);
            let expected: Vec<bf16> = y.iter().zip(&x).map(|(y, x)| bf16::store(y.load() * 0.3 - x.load())).collect();
            zip_real(&mut y, &x, |y, x| y * 0.3 - x);
            assert_eq!(y, expected);
        }
    }
}
