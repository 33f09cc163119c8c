//! The shape of attention, and the masks on its probabilities.

use candle_core::{Device, Result, Tensor, bail};

use super::cpu::dropout::DropoutMask;
use runner_spec::model::{Heads, Mask};

/// The shape of one attention call, whose rows [`Heads`] describes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    pub batch: usize,
    pub seq: usize,
    pub heads: Heads,
    pub mask: Mask,
    /// Factor on scores.
    pub scale: f64,
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

/// The documents in the rows of a batch. A row may begin and end with a part of one.
#[derive(Debug, Clone)]
pub struct Documents {
    /// For each position, `[batch·seq]`, the position of the first token of its document in the row.
    pub host: Vec<u32>,
    /// On the GPU that computes, where there is one: `host`, and for each position the end of its document, `[2·batch·seq]` u32.
    pub device: Option<Tensor>,
}

impl Documents {
    /// `starts` has, for each position of rows of `seq`, the position of the first token of its document; copied to `device` where that is a GPU.
    ///
    /// # Errors
    /// If a position neither starts a document nor belongs to the document of the position before it, or if the copy fails.
    pub fn new(starts: &[u32], seq: usize, device: &Device) -> Result<Self> {
        for (at, &start) in starts.iter().enumerate() {
            let position = at % seq;
            if start as usize != position && (position == 0 || start != starts[at - 1]) {
                bail!("position {position} of row {} has a document that starts at {start}", at / seq)
            }
        }
        #[cfg(feature = "cuda")]
        if device.is_cuda() {
            let mut ends: Vec<u32> = starts.iter().enumerate().map(|(at, _)| (at % seq + 1) as u32).collect();
            for at in (1..starts.len()).rev() {
                if at % seq > 0 && starts[at] == starts[at - 1] {
                    ends[at - 1] = ends[at];
                }
            }
            let there = crate::gpu::Gpu::of_device(device)?.upload(&[starts, &ends].concat())?;
            return Ok(Self { host: starts.to_vec(), device: Some(there) });
        }
        let _ = device;
        Ok(Self { host: starts.to_vec(), device: None })
    }
}

/// The masks on attention's probabilities, besides that of [`AttentionShape`].
#[derive(Debug, Clone, Copy, Default)]
pub struct AttentionMasks<'a> {
    pub dropout: Option<&'a DropoutMask>,
    /// Queries see no keys after these.
    pub valid_lengths: Option<&'a ValidLengths>,
    /// Queries see no keys before their own document, and none after themselves: [`AttentionShape`] has a causal mask, or a window.
    pub documents: Option<&'a Documents>,
}

impl AttentionMasks<'_> {
    /// The number of keys of sample `sample` before its padding.
    pub(super) fn visible_keys(&self, sample: usize) -> usize {
        self.valid_lengths.map_or(usize::MAX, |lengths| lengths.host[sample].max(1))
    }
}
