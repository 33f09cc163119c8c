//! What every layer is told about the micro-batch it works on.

use candle_core::{Result, Tensor};

use crate::kernels::attention::Filled;
use crate::kernels::cpu::dropout::Dropout;
use crate::kernels::{Math, pointwise};
use runner_spec::philox::Philox;

/// One micro-batch: `batch` rows of `seq` tokens.
#[derive(Debug, Clone)]
pub struct MicroBatch {
    /// [batch·seq], u32.
    pub ids: Tensor,
    /// [batch·seq]; `IGNORE` where the loss looks away.
    pub targets: Vec<u32>,
    /// The same on the GPU that computes the loss, where there is one.
    pub targets_there: Option<Tensor>,
    pub batch: usize,
    pub seq: usize,
    /// Of each row the tokens before its padding, where attention is to see no padding.
    pub filled: Option<Filled>,
    /// Optimizer step, from 0; with `first_sample`, the key of dropout.
    pub step: u64,
    /// Index of the first row within the global batch.
    pub first_sample: u64,
    /// How far apart the rows lie in the global batch.
    pub sample_stride: u64,
    /// Weight of each valid token's loss: 1 / valid tokens in the global batch.
    pub scale: f64,
    /// Whether dropout is on.
    pub training: bool,
    pub math: Math,
}

impl MicroBatch {
    /// With attention that sees the first `filled` tokens of each row alone; of all, if there are no such lengths.
    ///
    /// # Errors
    /// If they cannot be brought to the device.
    pub fn masked(mut self, filled: &[usize]) -> Result<Self> {
        self.filled = if filled.is_empty() { None } else { Some(Filled::new(filled, self.ids.device())?) };
        Ok(self)
    }
}

/// Dropout at one place of a model: nothing when p = 0 or outside training.
#[derive(Debug, Clone, Copy)]
pub struct Dropouts {
    stream: Philox,
    p: f64,
}

impl Dropouts {
    /// The site called `name`.
    #[must_use]
    pub fn new(seed: u64, name: &str, p: f64) -> Self {
        Self { stream: Philox::new(seed, &format!("dropout {name}")), p }
    }

    /// The mask of this micro-batch.
    #[must_use]
    pub fn mask(&self, mb: &MicroBatch) -> Option<Dropout> {
        (mb.training && self.p > 0.0).then_some(Dropout {
            stream: self.stream,
            step: mb.step,
            first_sample: mb.first_sample,
            sample_stride: mb.sample_stride,
            p: self.p,
        })
    }

    /// Drops elements of `x`, [batch·seq, width], in place.
    pub fn apply(&self, x: &Tensor, mb: &MicroBatch) -> Result<()> {
        match self.mask(mb) {
            Some(mask) => pointwise::dropout(x, mb.seq, &mask, mb.math),
            None => Ok(()),
        }
    }

    /// The gradient before the mask, given the gradient after it.
    pub fn backward(&self, dy: &Tensor, mb: &MicroBatch) -> Result<Tensor> {
        match self.mask(mb) {
            Some(mask) => {
                let dx = dy.copy()?;
                pointwise::dropout(&dx, mb.seq, &mask, mb.math)?;
                Ok(dx)
            }
            None => Ok(dy.clone()),
        }
    }
}
