//! Causal self-attention with grouped key-value heads, in blocks of queries.
//!
//! A task is one (sample, key-value head). It holds one [block, seq] tile of probabilities at a time, so scores never
//! exist for a whole head, and the backward recomputes them from the saved log-sum-exp (Dao et al. 2022).

use std::ops::Range;

use gemm::Parallelism;
use rayon::prelude::*;

use super::Real;
use super::dropout::DropoutMask;
use super::elementwise::{round_all, round_if};
use super::gemm::{Mat, gemm, gemm_raw};
use super::simd::{Shared, dot, inlined, max, sum_by, vectorize};
use crate::kernels::attention_shape::{AttentionMasks, AttentionShape};

/// Queries per tile.
const QUERIES_PER_TILE: usize = 64;

impl AttentionShape {
    /// Calls `f(sample, kv_head)` for every task, in parallel.
    fn for_each_task(&self, f: impl Fn(usize, usize) + Sync + Send) {
        (0..self.batch * self.kv_heads).into_par_iter().for_each(|t| f(t / self.kv_heads, t % self.kv_heads));
    }

    /// The `head_dim` columns from `column` on, in `rows` of sample `b`. Rows of `data` have `width` columns.
    fn head_rows<'a, T>(&self, data: &'a [T], width: usize, b: usize, rows: Range<usize>, column: usize) -> Mat<'a, T> {
        Mat::strided(&data[(b * self.seq + rows.start) * width + column..], rows.len(), self.head_dim, width)
    }
}

/// out = softmax(q·kᵀ/√head_dim, causal)·v. `lse` receives the log-sum-exp of each query's scores, [batch, heads, seq].
pub fn forward<T: Real>(
    s: AttentionShape,
    qkv: &[T],
    masks: AttentionMasks<'_>,
    out: &mut [T],
    lse: &mut [T],
    bf16: bool,
) {
    let (width, out_width, hd) = (s.qkv_width(), s.out_width(), s.head_dim);
    let (shared_out, shared_lse) = (Shared::new(out), Shared::new(lse));
    let group = s.heads / s.kv_heads;
    s.for_each_task(|b, kv| {
        let mut tile = vec![T::ZERO; QUERIES_PER_TILE.min(s.seq) * s.seq];
        for head in kv * group..(kv + 1) * group {
            for from in (0..s.seq).step_by(QUERIES_PER_TILE) {
                let to = (from + QUERIES_PER_TILE).min(s.seq);
                let q = s.head_rows(qkv, width, b, from..to, head * hd);
                let k = s.head_rows(qkv, width, b, 0..to, (s.heads + kv) * hd);
                let v = s.head_rows(qkv, width, b, 0..to, (s.heads + s.kv_heads + kv) * hd);
                let p = &mut tile[..(to - from) * to];
                gemm(p, to, T::ZERO, T::real(s.scale()), q, k.t(), Parallelism::None);
                // SAFETY: these queries of this head belong to this task alone.
                let lse = unsafe { shared_lse.slice((b * s.heads + head) * s.seq + from, to - from) };
                softmax_causal(p, to, from, masks.visible_keys(b), lse);
                drop_and_round(p, to, s, b, head, from, masks.dropout, bf16);
                // SAFETY: the rows lie in `out`, whose columns of this head belong to this task alone.
                unsafe {
                    let dst = shared_out.pointer((b * s.seq + from) * out_width + head * hd);
                    gemm_raw(dst, out_width, T::ZERO, T::ONE, Mat::new(p, to - from, to), v, Parallelism::None);
                }
            }
        }
    });
    if bf16 {
        round_all(out);
    }
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

/// Applies dropout and rounding to a tile of probabilities.
fn drop_and_round<T: Real>(
    p: &mut [T],
    width: usize,
    s: AttentionShape,
    b: usize,
    head: usize,
    from: usize,
    dropout: Option<&DropoutMask>,
    bf16: bool,
) {
    if let Some(dropout) = dropout {
        for (i, row) in p.chunks_exact_mut(width).enumerate() {
            dropout.apply(row, b, (head * s.seq + from + i) * s.seq, false);
        }
    }
    if bf16 {
        vectorize(inlined!(|| p.iter_mut().for_each(|v| *v = v.round_bf16())));
    }
}

/// Writes dL/d(qkv) from dL/d(out).
pub fn backward<T: Real>(
    s: AttentionShape,
    qkv: &[T],
    out: &[T],
    lse: &[T],
    masks: AttentionMasks<'_>,
    dout: &[T],
    dqkv: &mut [T],
    bf16: bool,
) {
    let (width, out_width, hd) = (s.qkv_width(), s.out_width(), s.head_dim);
    let group = s.heads / s.kv_heads;
    let dropout = masks.dropout;
    let shared = Shared::new(dqkv);
    s.for_each_task(|b, kv| {
        let block = QUERIES_PER_TILE.min(s.seq);
        let mut p = vec![T::ZERO; block * s.seq];
        let mut dp = vec![T::ZERO; block * s.seq];
        let mut dropped = if dropout.is_some() || bf16 { vec![T::ZERO; block * s.seq] } else { Vec::new() };
        let mut dk = vec![T::ZERO; s.seq * hd];
        let mut dv = vec![T::ZERO; s.seq * hd];
        for head in kv * group..(kv + 1) * group {
            for from in (0..s.seq).step_by(QUERIES_PER_TILE) {
                let to = (from + QUERIES_PER_TILE).min(s.seq);
                let n = to - from;
                let q = s.head_rows(qkv, width, b, from..to, head * hd);
                let k = s.head_rows(qkv, width, b, 0..to, (s.heads + kv) * hd);
                let v = s.head_rows(qkv, width, b, 0..to, (s.heads + s.kv_heads + kv) * hd);
                let dy = s.head_rows(dout, out_width, b, from..to, head * hd);
                let (p, dp) = (&mut p[..n * to], &mut dp[..n * to]);
                gemm(p, to, T::ZERO, T::real(s.scale()), q, k.t(), Parallelism::None);
                let lse = &lse[(b * s.heads + head) * s.seq + from..][..n];
                probabilities_from_lse(p, to, from, masks.visible_keys(b), lse);
                gemm(dp, to, T::ZERO, T::ONE, dy, v.t(), Parallelism::None);
                let seen: &[T] = if dropout.is_some() || bf16 {
                    let dropped = &mut dropped[..n * to];
                    dropped.copy_from_slice(p);
                    drop_and_round(dropped, to, s, b, head, from, dropout, bf16);
                    drop_and_round(dp, to, s, b, head, from, dropout, false);
                    dropped
                } else {
                    p
                };
                gemm(&mut dv, hd, T::ONE, T::ONE, Mat::new(seen, n, to).t(), dy, Parallelism::None);
                vectorize(inlined!(|| {
                    for i in 0..n {
                        let row = (b * s.seq + from + i) * out_width + head * hd;
                        // Σⱼ pⱼ·dpⱼ, which is the output's row times its gradient.
                        let delta = dot(&out[row..row + hd], &dout[row..row + hd]);
                        let (p, dp) = (&p[i * to..][..to], &mut dp[i * to..][..to]);
                        for (dp, &p) in dp.iter_mut().zip(p) {
                            *dp = round_if(p * (*dp - delta), bf16);
                        }
                    }
                }));
                let ds = Mat::new(dp, n, to);
                // SAFETY: the query columns of these rows belong to this task alone.
                unsafe {
                    let dst = shared.pointer((b * s.seq + from) * width + head * hd);
                    gemm_raw(dst, width, T::ZERO, T::real(s.scale()), ds, k, Parallelism::None);
                }
                gemm(&mut dk, hd, T::ONE, T::real(s.scale()), ds.t(), q, Parallelism::None);
            }
        }
        for (part, column) in [(&dk, s.heads + kv), (&dv, s.heads + s.kv_heads + kv)] {
            for (i, row) in part.chunks_exact(hd).enumerate() {
                // SAFETY: the columns of this key-value head belong to this task alone.
                let dst = unsafe { shared.slice((b * s.seq + i) * width + column * hd, hd) };
                dst.copy_from_slice(row);
            }
        }
    });
    if bf16 {
        round_all(dqkv);
    }
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
