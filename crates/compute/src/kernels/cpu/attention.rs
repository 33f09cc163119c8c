//! Self-attention with grouped key-value heads: in blocks of queries, and of new tokens over a key-value cache, for generation.
//!
//! A task is one (sample, key-value head). It holds one [block, seq] tile of probabilities at a time, so scores never
//! exist for a whole head, and the backward recomputes them from the saved log-sum-exp (Dao et al. 2022). Products read probabilities, and
//! the gradients of scores, as tensors store numbers.

use std::ops::Range;

use rayon::prelude::*;

use super::dropout::DropoutMask;
use super::elementwise::written;
use super::gemm::Mat;
use super::pieces::Pieces;
use super::simd::{LANES, Shared, axpy, dot, inlined, max, sum_by, vectorize};
use super::{Real, Stored};
use crate::kernels::attention_shape::{AttentionMasks, AttentionShape};

/// Queries whose probabilities a thread holds at a time.
pub(crate) const TILE_QUERIES: usize = 64;
/// The backward holds probabilities, their gradient, and their dropped or rounded copy for a tile of queries.
pub(crate) const TILES: u64 = 3;
/// It also holds the gradients of keys and values of one head, and products hold packed matrices of it: at most as many.
pub(crate) const HEAD_BUFFERS: u64 = 7;

impl AttentionShape {
    /// Calls `f(sample, kv_head)` for every task, in parallel.
    ///
    /// # Panics
    /// If the heads are not divided evenly among key-value heads, so that tasks would not cover them: an invariant of the callers.
    fn for_each_task(&self, f: impl Fn(usize, usize) + Sync + Send) {
        assert!(self.heads.is_multiple_of(self.kv_heads), "heads without a key-value head");
        (0..self.batch * self.kv_heads).into_par_iter().for_each_piece(|t| f(t / self.kv_heads, t % self.kv_heads));
    }

    /// Calls `f(queries)` for every tile of queries.
    fn for_each_tile(&self, mut f: impl FnMut(Range<usize>)) {
        for from in (0..self.seq).step_by(TILE_QUERIES) {
            f(from..(from + TILE_QUERIES).min(self.seq));
        }
    }

    /// The number of keys that the last of `queries` sees: the width of their tile.
    fn tile_width(&self, queries: &Range<usize>) -> usize {
        (queries.end + self.later_keys()).min(self.seq)
    }

    /// The number of elements of one tile of probabilities.
    fn tile_len(&self) -> usize {
        TILE_QUERIES.min(self.seq) * self.seq
    }

    /// The `head_dim` columns from `column` on, of the rows `rows` of sample `b`. Rows of `data` have `width` columns.
    fn head<'a, S>(&self, data: &'a [S], width: usize, b: usize, column: usize, rows: Range<usize>) -> Mat<'a, S> {
        Mat::strided(&data[(b * self.seq + rows.start) * width + column..], rows.len(), self.head_dim, width)
    }

    /// Copies `part`, rows of a head from position `first` on, to the `head_dim` columns from `column` on, of sample `b`.
    ///
    /// # Safety
    /// These columns of these rows lie in `data`, whose rows have `width` columns, and belong to the calling task alone.
    unsafe fn store_rows<S: Stored>(
        &self,
        part: &[S::Real],
        first: usize,
        data: Shared<S>,
        width: usize,
        b: usize,
        column: usize,
    ) {
        vectorize(inlined!(|| {
            for (i, numbers) in part.chunks_exact(self.head_dim).enumerate() {
                // SAFETY: the caller's promise.
                let row = unsafe { data.uninitialized((b * self.seq + first + i) * width + column, self.head_dim) };
                for (stored, &number) in row.iter_mut().zip(numbers) {
                    stored.write(S::store(number));
                }
            }
        }));
    }
}

/// Returns softmax(q·kᵀ/√head_dim)·v over the keys that each query sees, and the log-sum-exp of each query's scores, [batch, heads, seq].
pub fn forward<S: Stored>(s: AttentionShape, qkv: &[S], masks: AttentionMasks<'_>) -> (Vec<S>, Vec<S::Real>) {
    let (width, out_width, hd) = (s.qkv_width(), s.out_width(), s.head_dim);
    let group = s.heads / s.kv_heads;
    let mut lse = S::Real::zeros(s.batch * s.heads * s.seq);
    let shared_lse = Shared::new(&mut lse);
    let attend = |shared_out: Shared<S>| {
        s.for_each_task(|b, kv| {
            let mut tile = S::Real::zeros(s.tile_len());
            let mut stored = Vec::new();
            let mut rows = S::Real::zeros(TILE_QUERIES.min(s.seq) * hd);
            for head in kv * group..(kv + 1) * group {
                s.for_each_tile(|queries| {
                    let (from, n, to) = (queries.start, queries.len(), s.tile_width(&queries));
                    let q = s.head(qkv, width, b, head * hd, queries);
                    let k = s.head(qkv, width, b, (s.heads + kv) * hd, 0..to);
                    let v = s.head(qkv, width, b, (s.heads + s.kv_heads + kv) * hd, 0..to);
                    let p = &mut tile[..n * to];
                    S::small_product(p, Real::real(s.scale()), false, q, k.t());
                    // SAFETY: these queries of this head belong to this task alone.
                    let lse = unsafe { shared_lse.slice((b * s.heads + head) * s.seq + from, n) };
                    softmax_of_visible(p, to, from + s.later_keys(), masks.visible_keys(b), lse);
                    drop_probabilities(p, to, s, b, head, from, masks.dropout);
                    let rows = &mut rows[..n * hd];
                    S::small_product(rows, Real::ONE, false, Mat::new(S::store_all(p, &mut stored), n, to), v);
                    // SAFETY: the columns of this head belong to this task alone.
                    unsafe { s.store_rows(rows, from, shared_out, out_width, b, head * hd) };
                });
            }
        });
    };
    // SAFETY: all rows of all heads are written.
    let out = unsafe { written(s.batch * s.seq * out_width, |out| attend(Shared::unwritten(out))) };
    (out, lse)
}

/// Rows of scores become probabilities; row i sees columns up to `last + i`, and none from `keys` on.
fn softmax_of_visible<T: Real>(p: &mut [T], width: usize, last: usize, keys: usize, lse: &mut [T]) {
    let keys = keys.min(width);
    vectorize(inlined!(|| {
        for (i, (row, lse)) in p.chunks_exact_mut(width).zip(lse).enumerate() {
            let seen = (last + i + 1).min(keys);
            let top = max(&row[..seen]);
            for v in whole_registers(row, seen) {
                *v = (*v - top).fast_exp();
            }
            let total = sum_by(&row[..seen], inlined!(|v| v));
            let inverse = T::ONE / total;
            for v in whole_registers(row, seen) {
                *v *= inverse;
            }
            row[seen..].fill(T::ZERO);
            *lse = top + total.log();
        }
    }));
}

/// The first `len` numbers, and those that follow in the last vector register, so that a loop over them has no remainder.
#[inline(always)]
fn whole_registers<T>(row: &mut [T], len: usize) -> &mut [T] {
    let end = len.next_multiple_of(LANES).min(row.len());
    &mut row[..end]
}

/// Applies dropout to a tile of probabilities or of their gradients.
fn drop_probabilities<T: Real>(
    p: &mut [T],
    width: usize,
    s: AttentionShape,
    b: usize,
    head: usize,
    from: usize,
    dropout: Option<&DropoutMask>,
) {
    if let Some(dropout) = dropout {
        for (i, row) in p.chunks_exact_mut(width).enumerate() {
            dropout.apply(row, b, (head * s.seq + from + i) * s.seq);
        }
    }
}

/// dL/d(qkv) from dL/d(out).
pub fn backward<S: Stored>(
    s: AttentionShape,
    qkv: &[S],
    out: &[S],
    lse: &[S::Real],
    masks: AttentionMasks<'_>,
    dout: &[S],
) -> Vec<S> {
    let (width, out_width, hd) = (s.qkv_width(), s.out_width(), s.head_dim);
    let scale = S::Real::real(s.scale());
    let group = s.heads / s.kv_heads;
    let dropout = masks.dropout;
    let write = |shared: Shared<S>| {
        s.for_each_task(|b, kv| {
            let mut p = S::Real::zeros(s.tile_len());
            let mut dp = S::Real::zeros(s.tile_len());
            let mut dropped = S::Real::zeros(if dropout.is_some() { s.tile_len() } else { 0 });
            let mut stored = Vec::new();
            let mut dq = S::Real::zeros(TILE_QUERIES.min(s.seq) * hd);
            let [mut dk, mut dv] = std::array::from_fn(|_| S::Real::zeros(s.seq * hd));
            for head in kv * group..(kv + 1) * group {
                s.for_each_tile(|queries| {
                    let (from, n, to) = (queries.start, queries.len(), s.tile_width(&queries));
                    let q = s.head(qkv, width, b, head * hd, queries.clone());
                    let k = s.head(qkv, width, b, (s.heads + kv) * hd, 0..to);
                    let v = s.head(qkv, width, b, (s.heads + s.kv_heads + kv) * hd, 0..to);
                    let dy = s.head(dout, out_width, b, head * hd, queries);
                    let (p, dp) = (&mut p[..n * to], &mut dp[..n * to]);
                    S::small_product(p, scale, false, q, k.t());
                    let lse = &lse[(b * s.heads + head) * s.seq + from..][..n];
                    probabilities_from_lse(p, to, from + s.later_keys(), masks.visible_keys(b), lse);
                    S::small_product(dp, Real::ONE, false, dy, v.t());
                    let seen: &[S::Real] = if dropout.is_some() {
                        let dropped = &mut dropped[..n * to];
                        dropped.copy_from_slice(p);
                        drop_probabilities(dropped, to, s, b, head, from, dropout);
                        drop_probabilities(dp, to, s, b, head, from, dropout);
                        dropped
                    } else {
                        p
                    };
                    let seen = Mat::new(S::store_all(seen, &mut stored), n, to);
                    S::small_product(&mut dv, Real::ONE, true, seen.t(), dy);
                    vectorize(inlined!(|| {
                        for i in 0..n {
                            let row = (b * s.seq + from + i) * out_width + head * hd;
                            // Σⱼ pⱼ·dpⱼ, which is the output's row times its gradient.
                            let delta = dot(&out[row..row + hd], &dout[row..row + hd]);
                            let (p, dp) = (&p[i * to..][..to], &mut dp[i * to..][..to]);
                            for (dp, &p) in dp.iter_mut().zip(p) {
                                *dp = p * (*dp - delta);
                            }
                        }
                    }));
                    let ds = Mat::new(S::store_all(dp, &mut stored), n, to);
                    S::small_product(&mut dk, scale, true, ds.t(), q);
                    let dq = &mut dq[..n * hd];
                    S::small_product(dq, scale, false, ds, k);
                    // SAFETY: the columns of this query head belong to this task alone.
                    unsafe { s.store_rows(dq, from, shared, width, b, head * hd) };
                });
            }
            // SAFETY: the columns of this key-value head belong to this task alone.
            unsafe {
                s.store_rows(&dk, 0, shared, width, b, (s.heads + kv) * hd);
                s.store_rows(&dv, 0, shared, width, b, (s.heads + s.kv_heads + kv) * hd);
            }
        });
    };
    // SAFETY: all rows of all heads are written.
    unsafe { written(s.batch * s.seq * width, |dqkv| write(Shared::unwritten(dqkv))) }
}

/// [`softmax_of_visible`] with known log-sum-exps.
fn probabilities_from_lse<T: Real>(p: &mut [T], width: usize, last: usize, keys: usize, lse: &[T]) {
    let keys = keys.min(width);
    vectorize(inlined!(|| {
        for (i, (row, &lse)) in p.chunks_exact_mut(width).zip(lse).enumerate() {
            let seen = (last + i + 1).min(keys);
            for v in whole_registers(row, seen) {
                *v = (*v - lse).fast_exp();
            }
            row[seen..].fill(T::ZERO);
        }
    }));
}

/// Appends the keys and values of `s.seq` new tokens per sample to a cache at position `start`, and attends with each token's query over
/// the cached tokens up to the token itself. `keys_values` is the cache: first the keys, then the values, [batch, kv_heads, capacity,
/// head_dim] each, with space for the new tokens. `qkv` and `out` have the rows that [`AttentionShape`] describes.
pub fn attend_with_cache<S: Stored>(
    s: AttentionShape,
    qkv: &[S],
    start: usize,
    keys_values: &mut [S],
    capacity: usize,
    out: &mut [S],
) {
    let (width, out_width, hd) = (s.qkv_width(), s.out_width(), s.head_dim);
    let group = s.heads / s.kv_heads;
    let scale = S::Real::real(s.scale());
    let shared = Shared::new(out);
    let block = capacity * hd;
    let (keys, values) = keys_values.split_at_mut(s.batch * s.kv_heads * block);
    keys.par_chunks_mut(block).zip(values.par_chunks_mut(block)).enumerate().for_each_piece(
        |(task, (keys, values))| {
            let (b, kv) = (task / s.kv_heads, task % s.kv_heads);
            let mut p = S::Real::zeros(start + s.seq);
            let mut sum = S::Real::zeros(hd);
            for i in 0..s.seq {
                let row = &qkv[(b * s.seq + i) * width..][..width];
                keys[(start + i) * hd..][..hd].copy_from_slice(&row[(s.heads + kv) * hd..][..hd]);
                values[(start + i) * hd..][..hd].copy_from_slice(&row[(s.heads + s.kv_heads + kv) * hd..][..hd]);
                let p = &mut p[..=start + i];
                for head in kv * group..(kv + 1) * group {
                    // SAFETY: this head's columns of this row belong to this task alone.
                    let out = unsafe { shared.slice((b * s.seq + i) * out_width + head * hd, hd) };
                    vectorize(inlined!(|| {
                        let q = &row[head * hd..][..hd];
                        for (p, k) in p.iter_mut().zip(keys.chunks_exact(hd)) {
                            *p = dot(q, k) * scale;
                        }
                        let top = max(p);
                        for p in p.iter_mut() {
                            *p = (*p - top).fast_exp();
                        }
                        let inverse = S::Real::ONE / sum_by(p, inlined!(|v| v));
                        sum.fill(Real::ZERO);
                        for (&p, v) in p.iter().zip(values.chunks_exact(hd)) {
                            axpy(S::rounded(p * inverse), v, &mut sum);
                        }
                        for (out, &sum) in out.iter_mut().zip(&sum) {
                            *out = S::store(sum);
                        }
                    }));
                }
            }
        },
    );
}
