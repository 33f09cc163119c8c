//! The shape of attention, and the masks on its probabilities.

use candle_core::{Device, Result, Tensor};

use super::cpu::dropout::DropoutMask;
use runner_spec::model::{Heads, Mask};

/// The shape of one attention call, whose rows [`Heads`] describes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    pub batch: usize,
    pub seq: usize,
    pub heads: Heads,
    pub mask: Mask,
}

impl AttentionShape {
    pub fn qkv_width(&self) -> usize {
        self.heads.qkv_width()
    }

    pub fn out_width(&self) -> usize {
        self.heads.out_width()
    }

    /// How many keys after its own position a query sees, if there are that many.
    pub(super) fn later_keys(&self) -> usize {
        self.mask.reach(self.seq)[1]
    }

    /// How many keys before its own position a query sees, if there are that many.
    pub(super) fn earlier_keys(&self) -> usize {
        self.mask.reach(self.seq)[0]
    }

    pub(super) fn scale(&self) -> f64 {
        1.0 / (self.heads.width as f64).sqrt()
    }
}

/// The number of tokens of each sample that stand before its padding: at least one.
#[derive(Debug, Clone)]
pub struct ValidLengths {
    pub host: Vec<usize>,
    /// The lengths on the GPU that computes, `[batch]` u32, where there is one.
    pub device: Option<Tensor>,
}

impl ValidLengths {
    /// `lengths`, one for each sample, copied to `device` where that is a GPU.
    pub fn new(lengths: &[usize], device: &Device) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if device.is_cuda() {
            // A length that no `u32` holds counts as the longest.
            let lengths32: Vec<u32> = lengths.iter().map(|&n| u32::try_from(n).unwrap_or(u32::MAX)).collect();
            let there = crate::gpu::Gpu::of_device(device)?.upload(&lengths32)?;
            return Ok(Self { host: lengths.to_vec(), device: Some(there) });
        }
        let _ = device;
        Ok(Self { host: lengths.to_vec(), device: None })
    }
}

/// The masks on attention's probabilities, besides that of [`AttentionShape`].
#[derive(Debug, Clone, Copy, Default)]
pub struct AttentionMasks<'a> {
    pub dropout: Option<&'a DropoutMask>,
    /// Queries see no keys after these.
    pub valid_lengths: Option<&'a ValidLengths>,
}

impl AttentionMasks<'_> {
    /// The number of keys of sample `sample` before its padding.
    pub(super) fn visible_keys(&self, sample: usize) -> usize {
        self.valid_lengths.map_or(usize::MAX, |lengths| lengths.host[sample].max(1))
    }
}
