//! The micro-batch that layers work on, and dropout at one place of a model.

use candle_core::{Result, Tensor};

use crate::kernels::Gradient;
use crate::kernels::attention::{Documents, ValidLengths};
use crate::kernels::cpu::dropout::DropoutMask;
use crate::kernels::pointwise;
use runner_spec::philox::Philox;

/// One micro-batch: `batch` rows of `seq` tokens.
#[derive(Debug, Clone)]
pub struct MicroBatch {
    /// `[batch·seq]`, u32.
    pub ids: Tensor,
    /// `[batch·seq]`; `IGNORED_TARGET` where the loss ignores the token.
    pub targets: Vec<u32>,
    /// `targets` on the GPU that computes the loss, where there is one.
    pub device_targets: Option<Tensor>,
    pub batch: usize,
    pub seq: usize,
    /// The number of tokens of each row that stand before its padding, where attention must not see padding.
    pub valid_lengths: Option<ValidLengths>,
    /// The documents of the rows, where attention must not see others.
    pub documents: Option<Documents>,
    /// Optimizer step, from 0; with `first_sample`, the key of dropout.
    pub step: u64,
    /// Index of the first row within the global batch.
    pub first_sample: u64,
    /// Distance between two of the rows in the global batch.
    pub sample_stride: u64,
    /// Weight of each valid token's loss: 1 / valid tokens in the global batch.
    pub scale: f64,
    /// True if dropout is on.
    pub training: bool,
}

impl MicroBatch {
    /// Limits attention to the first `lengths[r]` tokens of row r. Without lengths, attention sees all tokens.
    ///
    /// # Errors
    /// If the lengths cannot be copied to the device.
    pub fn with_valid_lengths(mut self, lengths: &[usize]) -> Result<Self> {
        self.valid_lengths =
            if lengths.is_empty() { None } else { Some(ValidLengths::new(lengths, self.ids.device())?) };
        Ok(self)
    }

    /// Limits attention to documents: `starts` has, for each token, the position in its row of the first token of its document. Without
    /// starts, attention sees all tokens.
    ///
    /// # Errors
    /// If `starts` cannot be the starts of documents in rows of this length, or cannot be copied to the device.
    pub fn with_documents(mut self, starts: &[u32]) -> Result<Self> {
        self.documents =
            if starts.is_empty() { None } else { Some(Documents::new(starts, self.seq, self.ids.device())?) };
        Ok(self)
    }
}

/// Dropout at one place of a model. It does nothing when p = 0 or outside training.
#[derive(Debug, Clone, Copy)]
pub struct DropoutSite {
    stream: Philox,
    p: f64,
}

impl DropoutSite {
    /// The site called `name`; the name is part of the random stream's key.
    pub fn new(seed: u64, name: &str, p: f64) -> Self {
        Self { stream: Philox::new(seed, &format!("dropout {name}")), p }
    }

    /// The mask for this micro-batch; `None` without dropout.
    pub fn mask(&self, mb: &MicroBatch) -> Option<DropoutMask> {
        (mb.training && self.p > 0.0).then_some(DropoutMask {
            stream: self.stream,
            step: mb.step,
            first_sample: mb.first_sample,
            sample_stride: mb.sample_stride,
            p: self.p,
        })
    }

    /// Drops elements of `x`, `[batch·seq, width]`, in place.
    pub fn apply(&self, x: &Tensor, mb: &MicroBatch) -> Result<()> {
        match self.mask(mb) {
            Some(mask) => pointwise::dropout(x, mb.seq, &mask),
            None => Ok(()),
        }
    }

    /// Returns the gradient before the mask, given the gradient after it.
    pub fn backward(&self, dy: &Gradient, mb: &MicroBatch) -> Result<Gradient> {
        match self.mask(mb) {
            Some(mask) => {
                let dx = dy.tensor.copy()?;
                pointwise::dropout(&dx, mb.seq, &mask)?;
                Ok(dx.into())
            }
            None => Ok(dy.clone()),
        }
    }
}
