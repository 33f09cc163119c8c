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
fn map_chunk<D: Stored, S: Stored>(dst: &mut [MaybeUninit<D>], src: &[S], f: impl Fn(S) -> D) {
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

/// Applies `f` to each element.
pub fn each<S: Stored>(dst: &mut [S], f: impl Fn(&mut S) + Sync) {
    dst.par_chunks_mut(TASK).for_each_piece(|d| {
        vectorize(inlined!(|| d.iter_mut().for_each(&f)));
    });
}

/// Adds the column sums of `dy` ([rows, dbias.len()]) to `dbias`.
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
