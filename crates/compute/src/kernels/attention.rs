//! Causal self-attention over packed query, key and value rows, and over a key-value cache.

use candle_core::{DType, Result, Tensor, bail};

use super::access::{Math, tensor};
use super::cpu::Real;
use super::cpu::attention as cpu;
use super::cpu::decode::{self, CpuKvCache};

pub use super::attention_shape::{AttentionMasks, AttentionShape, ValidLengths};

/// Returns the output, [batch·seq, heads·head_dim], and the log-sum-exps that the backward needs, [batch·heads·seq].
pub fn attention(qkv: &Tensor, s: AttentionShape, masks: AttentionMasks<'_>, math: Math) -> Result<(Tensor, Tensor)> {
    check(s, masks)?;
    on_gpu!(qkv => super::cuda::attention::attention(qkv, s, masks));
    with_type!(qkv, T => {
        read!(T; qkv = qkv);
        let mut out = vec![T::ZERO; s.batch * s.seq * s.out_width()];
        let mut lse = vec![T::ZERO; s.batch * s.heads * s.seq];
        cpu::forward(s, qkv, masks, &mut out, &mut lse, math.bf16);
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
    math: Math,
) -> Result<Tensor> {
    check(s, masks)?;
    on_gpu!(qkv => super::cuda::attention::attention_backward(qkv, out, lse, dout, s, masks));
    with_type!(qkv, T => {
        read!(T; qkv = qkv, out = out, lse = lse, dout = dout);
        let mut dqkv = vec![T::ZERO; s.batch * s.seq * s.qkv_width()];
        cpu::backward(s, qkv, out, lse, masks, dout, &mut dqkv, math.bf16);
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

/// One layer's keys and values of the tokens so far.
#[derive(Debug)]
pub enum LayerKvCache {
    F32(CpuKvCache<f32>),
    F64(CpuKvCache<f64>),
    #[cfg(feature = "cuda")]
    Device(super::cuda::attention::DeviceKvCache),
}

impl LayerKvCache {
    /// An empty cache for `capacity` tokens per sample, on the device of `like`.
    pub fn new(s: AttentionShape, capacity: usize, like: &Tensor) -> Result<Self> {
        on_gpu!(like => Ok(Self::Device(super::cuda::attention::DeviceKvCache::new(capacity))));
        Ok(match like.dtype() {
            DType::F32 => Self::F32(CpuKvCache::new(s, capacity)),
            DType::F64 => Self::F64(CpuKvCache::new(s, capacity)),
            other => bail!("kernels take f32 or f64, not {other:?}"),
        })
    }
}

/// Appends the new tokens of `qkv` at position `start` to the cache and attends over it.
pub fn attend_with_cache(
    qkv: &Tensor,
    s: AttentionShape,
    start: usize,
    cache: &mut LayerKvCache,
    math: Math,
) -> Result<Tensor> {
    fn run<T: Real>(
        qkv: &Tensor,
        s: AttentionShape,
        start: usize,
        cache: &mut CpuKvCache<T>,
        math: Math,
    ) -> Result<Tensor> {
        read!(T; qkv = qkv);
        let mut out = vec![T::ZERO; s.batch * s.seq * s.out_width()];
        decode::attend_with_cache(s, qkv, start, cache, &mut out, math.bf16);
        tensor(out, (s.batch * s.seq, s.out_width()))
    }
    match cache {
        LayerKvCache::F32(cache) => run(qkv, s, start, cache, math),
        LayerKvCache::F64(cache) => run(qkv, s, start, cache, math),
        #[cfg(feature = "cuda")]
        LayerKvCache::Device(cache) => super::cuda::attention::attend_with_cache(qkv, s, start, cache),
    }
}
