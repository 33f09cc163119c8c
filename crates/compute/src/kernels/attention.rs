//! Causal self-attention over packed query, key and value rows, and over a key-value cache.

use std::cell::RefCell;

use candle_core::{Result, Tensor, bail};

use super::access::{StoredPrecision, activation_dtype, tensor, write};
use super::cpu::attention as cpu;
use super::cpu::{Real, decode};

pub use super::attention_shape::{AttentionMasks, AttentionShape, ValidLengths};

/// Returns the output, [batch·seq, heads·head_dim], and the log-sum-exps that the backward needs, [batch·heads·seq].
pub fn attention(
    qkv: &Tensor,
    s: AttentionShape,
    masks: AttentionMasks<'_>,
    precision: StoredPrecision,
) -> Result<(Tensor, Tensor)> {
    check(s, masks)?;
    on_gpu!(qkv => super::cuda::attention::attention(qkv, s, masks));
    with_type!(qkv, T; qkv = qkv => {
        let mut out = vec![T::ZERO; s.batch * s.seq * s.out_width()];
        let mut lse = vec![T::ZERO; s.batch * s.heads * s.seq];
        cpu::forward(s, qkv, masks, &mut out, &mut lse, precision.bf16);
        Ok((tensor(out, (s.batch * s.seq, s.out_width()))?, tensor(lse, s.batch * s.heads * s.seq)?))
    })
}

/// Returns dL/d(qkv).
pub fn attention_backward(
    qkv: &Tensor,
    out: &Tensor,
    lse: &Tensor,
    dout: &Tensor,
    s: AttentionShape,
    masks: AttentionMasks<'_>,
    precision: StoredPrecision,
) -> Result<Tensor> {
    check(s, masks)?;
    on_gpu!(qkv => super::cuda::attention::attention_backward(qkv, out, lse, dout, s, masks));
    with_type!(qkv, T; qkv = qkv, out = out, lse = lse, dout = dout => {
        let mut dqkv = vec![T::ZERO; s.batch * s.seq * s.qkv_width()];
        cpu::backward(s, qkv, out, lse, masks, dout, &mut dqkv, precision.bf16);
        tensor(dqkv, (s.batch * s.seq, s.qkv_width()))
    })
}

fn check(s: AttentionShape, masks: AttentionMasks<'_>) -> Result<()> {
    match masks.valid_lengths {
        Some(lengths) if lengths.host.len() != s.batch => {
            bail!("{} valid lengths for {} samples", lengths.host.len(), s.batch)
        }
        _ => Ok(()),
    }
}

/// An empty cache of one layer's keys and values for `capacity` tokens per sample, of the type of activations and on their device, given weights
/// `like`: the keys, then the values, [2, batch, kv_heads, capacity, head_dim].
pub fn new_cache(s: AttentionShape, capacity: usize, like: &Tensor) -> Result<Tensor> {
    Tensor::zeros((2, s.batch, s.kv_heads, capacity, s.head_dim), activation_dtype(like), like.device())
}

/// Appends the new tokens of `qkv` at position `start` to `cache`, which [`new_cache`] made, and attends over it.
pub fn attend_with_cache(
    qkv: &Tensor,
    s: AttentionShape,
    start: usize,
    cache: &Tensor,
    precision: StoredPrecision,
) -> Result<Tensor> {
    let capacity = cache.dim(3)?;
    if start + s.seq > capacity {
        bail!("{} tokens in a cache for {capacity}", start + s.seq)
    }
    on_gpu!(qkv => super::cuda::attention::attend_with_cache(qkv, s, start, cache, capacity));
    with_type!(qkv, T; qkv = qkv => {
        let out = RefCell::new(vec![T::ZERO; s.batch * s.seq * s.out_width()]);
        write::<T>(cache, "attend_with_cache", |keys_values| {
            decode::attend_with_cache(s, qkv, start, keys_values, capacity, &mut out.borrow_mut(), precision.bf16);
        })?;
        tensor(out.into_inner(), (s.batch * s.seq, s.out_width()))
    })
}
