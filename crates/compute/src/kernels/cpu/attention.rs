//! Causal self-attention with grouped key-value heads, in blocks of queries.
//!
//! A task is one (sample, key-value head). It holds one [block, seq] tile of probabilities at a time, so scores never
//! exist for a whole head, and the backward recomputes them from the saved log-sum-exp (Dao et al. 2022). Heads that are stored in another
//! type than that of products are copied.

use std::ops::Range;

use gemm::Parallelism;
use rayon::prelude::*;

use super::dropout::DropoutMask;
use super::gemm::{Mat, gemm};
use super::simd::{Shared, dot, inlined, max, sum_by, vectorize};
use super::{Real, Stored};
use crate::kernels::attention_shape::{AttentionMasks, AttentionShape};
use runner_spec::program::ATTENTION_TILE_QUERIES;

impl AttentionShape {
    /// Calls `f(sample, kv_head)` for every task, in parallel.
    fn for_each_task(&self, f: impl Fn(usize, usize) + Sync + Send) {
        (0..self.batch * self.kv_heads).into_par_iter().for_each(|t| f(t / self.kv_heads, t % self.kv_heads));
    }

    /// Calls `f(queries)` for every tile of queries.
    fn for_each_tile(&self, mut f: impl FnMut(Range<usize>)) {
        for from in (0..self.seq).step_by(ATTENTION_TILE_QUERIES) {
            f(from..(from + ATTENTION_TILE_QUERIES).min(self.seq));
        }
    }

    /// The numbers of one tile of probabilities.
    fn tile_len(&self) -> usize {
        ATTENTION_TILE_QUERIES.min(self.seq) * self.seq
    }

    /// The `head_dim` columns from `column` on, of sample `b`, [seq, head_dim]. Rows of `data` have `width` columns. They are copied to
    /// `buffer` if `data` is in another type than the one of products.
    fn head<'a, S: Stored>(
        &self,
        data: &'a [S],
        width: usize,
        b: usize,
        column: usize,
        buffer: &'a mut Vec<S::Real>,
    ) -> Head<'a, S::Real> {
        let first = b * self.seq * width + column;
        if let Some(numbers) = S::as_real(data) {
            return Head { numbers: &numbers[first..], stride: width, width: self.head_dim };
        }
        buffer.resize(self.seq * self.head_dim, Real::ZERO);
        vectorize(inlined!(|| {
            for (numbers, row) in buffer.chunks_exact_mut(self.head_dim).zip(data[first..].chunks(width)) {
                for (number, &stored) in numbers.iter_mut().zip(row) {
                    *number = stored.load();
                }
            }
        }));
        Head { numbers: buffer, stride: self.head_dim, width: self.head_dim }
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
                let row = unsafe { data.slice((b * self.seq + first + i) * width + column, self.head_dim) };
                for (stored, &number) in row.iter_mut().zip(numbers) {
                    *stored = S::store(number);
                }
            }
        }));
    }
}

/// The numbers of one head of a sample: rows of `width`, `stride` apart.
#[derive(Clone, Copy)]
struct Head<'a, T> {
    numbers: &'a [T],
    stride: usize,
    width: usize,
}

impl<'a, T> Head<'a, T> {
    fn rows(self, rows: Range<usize>) -> Mat<'a, T> {
        Mat::strided(&self.numbers[rows.start * self.stride..], rows.len(), self.width, self.stride)
    }
}

/// out = softmax(q·kᵀ/√head_dim, causal)·v. `lse` receives the log-sum-exp of each query's scores, [batch, heads, seq].
pub fn forward<S: Stored>(s: AttentionShape, qkv: &[S], masks: AttentionMasks<'_>, out: &mut [S], lse: &mut [S::Real]) {
    let (width, out_width, hd) = (s.qkv_width(), s.out_width(), s.head_dim);
    let (zero, one) = (S::Real::ZERO, S::Real::ONE);
    let (shared_out, shared_lse) = (Shared::new(out), Shared::new(lse));
    let group = s.heads / s.kv_heads;
    s.for_each_task(|b, kv| {
        let mut tile = S::Real::zeros(s.tile_len());
        let mut rows = S::Real::zeros(ATTENTION_TILE_QUERIES.min(s.seq) * hd);
        let [mut q, mut k, mut v] = [const { Vec::new() }; 3];
        let k = s.head(qkv, width, b, (s.heads + kv) * hd, &mut k);
        let v = s.head(qkv, width, b, (s.heads + s.kv_heads + kv) * hd, &mut v);
        for head in kv * group..(kv + 1) * group {
            let q = s.head(qkv, width, b, head * hd, &mut q);
            s.for_each_tile(|queries| {
                let (from, n, to) = (queries.start, queries.len(), queries.end);
                let p = &mut tile[..n * to];
                let k = k.rows(0..to);
                gemm(p, to, zero, Real::real(s.scale()), q.rows(queries), k.t(), Parallelism::None);
                // SAFETY: these queries of this head belong to this task alone.
                let lse = unsafe { shared_lse.slice((b * s.heads + head) * s.seq + from, n) };
                softmax_causal(p, to, from, masks.visible_keys(b), lse);
                drop_and_round::<S>(p, to, s, b, head, from, masks.dropout);
                let rows = &mut rows[..n * hd];
                gemm(rows, hd, zero, one, Mat::new(p, n, to), v.rows(0..to), Parallelism::None);
                // SAFETY: the columns of this head belong to this task alone.
                unsafe { s.store_rows(rows, from, shared_out, out_width, b, head * hd) };
            });
        }
    });
}

/// Rows of scores become probabilities; row i sees columns up to `from + i`, and none from `keys` on.
fn softmax_causal<T: Real>(p: &mut [T], width: usize, from: usize, keys: usize, lse: &mut [T]) {
    vectorize(inlined!(|| {
        for (i, (row, lse)) in p.chunks_exact_mut(width).zip(lse).enumerate() {
            let (seen, masked) = row.split_at_mut((from + i + 1).min(keys));
            let top = max(seen);
            for v in seen.iter_mut() {
                *v = (*v - top).fast_exp();
            }
            let total = sum_by(seen, inlined!(|v| v));
            let inverse = T::ONE / total;
            for v in seen.iter_mut() {
                *v *= inverse;
            }
            masked.fill(T::ZERO);
            *lse = top + total.log();
        }
    }));
}

/// Applies dropout to a tile of probabilities, and rounds them as `S` stores numbers.
fn drop_and_round<S: Stored>(
    p: &mut [S::Real],
    width: usize,
    s: AttentionShape,
    b: usize,
    head: usize,
    from: usize,
    dropout: Option<&DropoutMask>,
) {
    drop_probabilities(p, width, s, b, head, from, dropout);
    if S::IS_BF16 {
        vectorize(inlined!(|| p.iter_mut().for_each(|v| *v = S::rounded(*v))));
    }
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

/// Writes dL/d(qkv) from dL/d(out).
pub fn backward<S: Stored>(
    s: AttentionShape,
    qkv: &[S],
    out: &[S],
    lse: &[S::Real],
    masks: AttentionMasks<'_>,
    dout: &[S],
    dqkv: &mut [S],
) {
    let (width, out_width, hd) = (s.qkv_width(), s.out_width(), s.head_dim);
    let (zero, one) = (S::Real::ZERO, S::Real::ONE);
    let scale = S::Real::real(s.scale());
    let group = s.heads / s.kv_heads;
    let dropout = masks.dropout;
    let shared = Shared::new(dqkv);
    s.for_each_task(|b, kv| {
        let mut p = S::Real::zeros(s.tile_len());
        let mut dp = S::Real::zeros(s.tile_len());
        let changes_probabilities = dropout.is_some() || S::IS_BF16;
        let mut dropped = S::Real::zeros(if changes_probabilities { s.tile_len() } else { 0 });
        let mut dq = S::Real::zeros(ATTENTION_TILE_QUERIES.min(s.seq) * hd);
        let [mut dk, mut dv] = std::array::from_fn(|_| S::Real::zeros(s.seq * hd));
        let [mut q, mut k, mut v, mut dy] = [const { Vec::new() }; 4];
        let k = s.head(qkv, width, b, (s.heads + kv) * hd, &mut k);
        let v = s.head(qkv, width, b, (s.heads + s.kv_heads + kv) * hd, &mut v);
        for head in kv * group..(kv + 1) * group {
            let q = s.head(qkv, width, b, head * hd, &mut q);
            let dy = s.head(dout, out_width, b, head * hd, &mut dy);
            s.for_each_tile(|queries| {
                let (from, n, to) = (queries.start, queries.len(), queries.end);
                let (q, dy) = (q.rows(queries.clone()), dy.rows(queries));
                let (k, v) = (k.rows(0..to), v.rows(0..to));
                let (p, dp) = (&mut p[..n * to], &mut dp[..n * to]);
                gemm(p, to, zero, scale, q, k.t(), Parallelism::None);
                let lse = &lse[(b * s.heads + head) * s.seq + from..][..n];
                probabilities_from_lse(p, to, from, masks.visible_keys(b), lse);
                gemm(dp, to, zero, one, dy, v.t(), Parallelism::None);
                let seen: &[S::Real] = if changes_probabilities {
                    let dropped = &mut dropped[..n * to];
                    dropped.copy_from_slice(p);
                    drop_and_round::<S>(dropped, to, s, b, head, from, dropout);
                    drop_probabilities(dp, to, s, b, head, from, dropout);
                    dropped
                } else {
                    p
                };
                gemm(&mut dv, hd, one, one, Mat::new(seen, n, to).t(), dy, Parallelism::None);
                vectorize(inlined!(|| {
                    for i in 0..n {
                        let row = (b * s.seq + from + i) * out_width + head * hd;
                        // Σⱼ pⱼ·dpⱼ, which is the output's row times its gradient.
                        let delta = dot(&out[row..row + hd], &dout[row..row + hd]);
                        let (p, dp) = (&p[i * to..][..to], &mut dp[i * to..][..to]);
                        for (dp, &p) in dp.iter_mut().zip(p) {
                            *dp = S::rounded(p * (*dp - delta));
                        }
                    }
                }));
                let ds = Mat::new(dp, n, to);
                gemm(&mut dk, hd, one, scale, ds.t(), q, Parallelism::None);
                let dq = &mut dq[..n * hd];
                gemm(dq, hd, zero, scale, ds, k, Parallelism::None);
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
}

/// Rows of scores become probabilities, with their known log-sum-exp.
fn probabilities_from_lse<T: Real>(p: &mut [T], width: usize, from: usize, keys: usize, lse: &[T]) {
    vectorize(inlined!(|| {
        for (i, (row, &lse)) in p.chunks_exact_mut(width).zip(lse).enumerate() {
            let (seen, masked) = row.split_at_mut((from + i + 1).min(keys));
            for v in seen {
                *v = (*v - lse).fast_exp();
            }
            masked.fill(T::ZERO);
        }
    }));
}
