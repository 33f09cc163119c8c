//! Attention of new tokens over a key-value cache, for generation.

use rayon::prelude::*;

use super::simd::{Shared, axpy, dot, inlined, max, sum_by, vectorize};
use super::{Real, Stored};
use crate::kernels::attention_shape::AttentionShape;

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
    keys.par_chunks_mut(block).zip(values.par_chunks_mut(block)).enumerate().for_each(|(task, (keys, values))| {
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
    });
}
