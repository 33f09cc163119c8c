//! Causal self-attention over packed query, key and value rows, and over a key-value cache.

use candle_core::{DType, Device, Result, Tensor, bail};

use super::access::{Math, tensor};
use super::cpu::Real;
use super::cpu::attention as cpu;
use super::cpu::decode::{self, LayerCache};
use super::cpu::dropout::Dropout;

pub use super::cpu::attention::Shape;

/// Of each sample the tokens before its padding, at least one.
#[derive(Debug, Clone)]
pub struct Filled {
    pub host: Vec<usize>,
    /// The same on the GPU that computes, \[batch\] u32, where there is one.
    pub device: Option<Tensor>,
}

impl Filled {
    /// `lengths`, one for each sample, brought to `device` where that is a GPU.
    pub fn new(lengths: &[usize], device: &Device) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if device.is_cuda() {
            let words: Vec<u32> = lengths.iter().map(|&n| u32::try_from(n).unwrap_or(u32::MAX)).collect();
            let there = crate::gpu::Gpu::of(device)?.upload(&words)?;
            return Ok(Self { host: lengths.to_vec(), device: Some(there) });
        }
        let _ = device;
        Ok(Self { host: lengths.to_vec(), device: None })
    }
}

/// What is taken from the probabilities besides the future.
#[derive(Debug, Clone, Copy, Default)]
pub struct Masks<'a> {
    pub dropout: Option<&'a Dropout>,
    /// Queries see no keys behind these.
    pub filled: Option<&'a Filled>,
}

impl<'a> Masks<'a> {
    fn on_cpu(self) -> cpu::Masks<'a> {
        cpu::Masks { dropout: self.dropout, filled: self.filled.map(|filled| filled.host.as_slice()) }
    }
}

/// Returns the output, [batch·seq, heads·head_dim], and the log-sum-exps that the backward needs, [batch·heads·seq].
pub fn attention(qkv: &Tensor, s: Shape, masks: Masks<'_>, math: Math) -> Result<(Tensor, Tensor)> {
    check(s, masks)?;
    on_gpu!(qkv => super::cuda::attention::attention(qkv, s, masks));
    with_type!(qkv, T => {
        read!(T; qkv = qkv);
        let mut out = vec![T::ZERO; s.batch * s.seq * s.out_width()];
        let mut lse = vec![T::ZERO; s.batch * s.heads * s.seq];
        cpu::forward(s, qkv, masks.on_cpu(), &mut out, &mut lse, math.bf16);
        Ok((tensor(out, (s.batch * s.seq, s.out_width()))?, tensor(lse, s.batch * s.heads * s.seq)?))
    })
}

/// Returns dL/d(qkv).
pub fn attention_backward(
    qkv: &Tensor,
    out: &Tensor,
    lse: &Tensor,
    dout: &Tensor,
    s: Shape,
    masks: Masks<'_>,
    math: Math,
) -> Result<Tensor> {
    check(s, masks)?;
    on_gpu!(qkv => super::cuda::attention::attention_backward(qkv, out, lse, dout, s, masks));
    with_type!(qkv, T => {
        read!(T; qkv = qkv, out = out, lse = lse, dout = dout);
        let mut dqkv = vec![T::ZERO; s.batch * s.seq * s.qkv_width()];
        cpu::backward(s, qkv, out, lse, masks.on_cpu(), dout, &mut dqkv, math.bf16);
        tensor(dqkv, (s.batch * s.seq, s.qkv_width()))
    })
}

fn check(s: Shape, masks: Masks<'_>) -> Result<()> {
    match masks.filled {
        Some(filled) if filled.host.len() != s.batch => {
            bail!("{} filled lengths for {} samples", filled.host.len(), s.batch)
        }
        _ => Ok(()),
    }
}

/// One layer's keys and values of the tokens so far.
#[derive(Debug)]
pub enum Cache {
    F32(LayerCache<f32>),
    F64(LayerCache<f64>),
    #[cfg(feature = "cuda")]
    Device(super::cuda::attention::DeviceCache),
}

impl Cache {
    /// Room for `capacity` tokens per sample, where `like` is.
    pub fn new(s: Shape, capacity: usize, like: &Tensor) -> Result<Self> {
        on_gpu!(like => Ok(Self::Device(super::cuda::attention::DeviceCache::new(capacity))));
        Ok(match like.dtype() {
            DType::F32 => Self::F32(LayerCache::new(s, capacity)),
            DType::F64 => Self::F64(LayerCache::new(s, capacity)),
            other => bail!("kernels take f32 or f64, not {other:?}"),
        })
    }
}

/// Appends the new tokens of `qkv` at position `start` to the cache and attends over it.
pub fn attend(qkv: &Tensor, s: Shape, start: usize, cache: &mut Cache, math: Math) -> Result<Tensor> {
    fn run<T: Real>(qkv: &Tensor, s: Shape, start: usize, cache: &mut LayerCache<T>, math: Math) -> Result<Tensor> {
        read!(T; qkv = qkv);
        let mut out = vec![T::ZERO; s.batch * s.seq * s.out_width()];
        decode::attend(s, qkv, start, cache, &mut out, math.bf16);
        tensor(out, (s.batch * s.seq, s.out_width()))
    }
    match cache {
        Cache::F32(cache) => run(qkv, s, start, cache, math),
        Cache::F64(cache) => run(qkv, s, start, cache, math),
        #[cfg(feature = "cuda")]
        Cache::Device(cache) => super::cuda::attention::attend(qkv, s, start, cache),
    }
}
