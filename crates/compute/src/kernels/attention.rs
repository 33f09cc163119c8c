//! Self-attention over packed query, key and value rows, and over a key-value cache.

use std::cell::RefCell;

use candle_core::{Result, Tensor, bail};

use super::Gradient;
use super::access::{tensor, write};
use super::cpu::Stored;
use super::cpu::attention as cpu;

pub use super::attention_shape::{AttentionMasks, AttentionShape, Documents, ValidLengths};

/// Returns the output, `[batch·seq, width of all heads]`, and the log-sum-exps that the backward needs, `[batch·heads·seq]`.
pub fn attention(qkv: &Tensor, s: AttentionShape, masks: AttentionMasks<'_>) -> Result<(Tensor, Tensor)> {
    check(s, masks)?;
    on_gpu!(qkv => super::cuda::attention::attention(qkv, s, masks));
    with_type!(qkv, S; qkv = qkv => {
        let (out, lse) = cpu::forward(s, qkv, masks);
        Ok((tensor(out, (s.batch * s.seq, s.out_width()))?, tensor(lse, s.batch * s.heads.queries * s.seq)?))
    })
}

/// Returns dL/d(qkv). `sums`: whether row sums of it are wanted.
pub fn attention_backward(
    qkv: &Tensor,
    out: &Tensor,
    lse: &Tensor,
    dout: &Tensor,
    s: AttentionShape,
    masks: AttentionMasks<'_>,
    sums: bool,
) -> Result<Gradient> {
    check(s, masks)?;
    on_gpu!(qkv => super::cuda::attention::attention_backward(qkv, out, lse, dout, s, masks, sums));
    let _ = sums;
    with_type!(qkv, S; qkv = qkv, out = out, dout = dout => {
        read!(real!(S); lse = lse);
        Ok(tensor(cpu::backward(s, qkv, out, lse, masks, dout), (s.batch * s.seq, s.qkv_width()))?.into())
    })
}

fn check(s: AttentionShape, masks: AttentionMasks<'_>) -> Result<()> {
    if s.heads.kv == 0 || !s.heads.queries.is_multiple_of(s.heads.kv) {
        bail!("{} heads for {} key-value heads", s.heads.queries, s.heads.kv)
    }
    if let Some(documents) = masks.documents {
        if s.mask.sees_ahead() {
            bail!("documents are seen apart only with causal attention")
        }
        if documents.host.len() != s.batch * s.seq {
            bail!("documents of {} positions for {} rows of {}", documents.host.len(), s.batch, s.seq)
        }
    }
    match masks.valid_lengths {
        Some(lengths) if lengths.host.len() != s.batch => {
            bail!("{} valid lengths for {} samples", lengths.host.len(), s.batch)
        }
        _ => Ok(()),
    }
}

/// An empty cache of one layer's keys and values for `capacity` tokens per sample, of the type and on the device of the weights `like`: the
/// keys, then the values, `[2, batch, heads of keys, capacity, width of a head]`.
pub fn new_cache(s: AttentionShape, capacity: usize, like: &Tensor) -> Result<Tensor> {
    Tensor::zeros((2, s.batch, s.heads.kv, capacity, s.heads.width), like.dtype(), like.device())
}

/// Appends the new tokens of `qkv` at position `start` to `cache`, which [`new_cache`] made, and attends over it.
///
/// # Errors
/// If queries see keys after their own position: then each new token changes what the tokens before it have seen.
pub fn attend_with_cache(qkv: &Tensor, s: AttentionShape, start: usize, cache: &Tensor) -> Result<Tensor> {
    if s.mask.sees_ahead() {
        bail!("a cache of keys and values needs causal attention")
    }
    let capacity = cache.dim(3)?;
    if start + s.seq > capacity {
        bail!("{} tokens in a cache for {capacity}", start + s.seq)
    }
    on_gpu!(qkv => super::cuda::attention::attend_with_cache(qkv, s, start, cache, capacity));
    with_type!(qkv, S; qkv = qkv => {
        let out = RefCell::new(S::zeros(s.batch * s.seq * s.out_width()));
        write::<S>(cache, "attend_with_cache", |keys_values| {
            cpu::attend_with_cache(s, qkv, start, keys_values, capacity, &mut out.borrow_mut());
        })?;
        tensor(out.into_inner(), (s.batch * s.seq, s.out_width()))
    })
}
