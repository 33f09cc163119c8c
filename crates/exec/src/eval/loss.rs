//! Validation loss: the mean over valid tokens, not over batches.

use super::batches::{self, Batches};
use crate::error::EvalError;
use runner_data::Split;
use runner_spec::data::Rows;

/// The summed loss of a batch, its valid tokens, and the bytes of text that they stand for.
const VALUES_PER_BATCH: usize = 3;

/// Loss in nats per valid token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValidationLoss {
    pub loss: f64,
    pub tokens: u64,
    /// The bytes of text that the tokens stand for; `None` if they are not known.
    pub bytes: Option<u64>,
}

impl ValidationLoss {
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }

    /// The summed loss in bits over the bytes of text: a figure that does not depend on the tokenizer.
    pub fn bits_per_byte(&self) -> Option<f64> {
        let bytes = self.bytes.filter(|&bytes| bytes > 0)?;
        Some(self.loss * self.tokens as f64 / (bytes as f64 * std::f64::consts::LN_2))
    }
}

/// The first rows of a split in batches of `micro_batch`. The summed loss, the valid tokens and their bytes of each batch are recorded.
#[derive(Debug, Clone, Copy)]
pub struct LossBatches<'a> {
    split: &'a Split,
    rows: u64,
    micro_batch: u64,
    mask_padding: bool,
}

impl<'a> LossBatches<'a> {
    /// The first `rows` rows of `split`, or all of it if it is shorter; the last batch may be smaller than the others. With
    /// `mask_padding`, attention sees no padding.
    pub fn new(split: &'a Split, rows: u64, micro_batch: usize, mask_padding: bool) -> Self {
        let micro_batch = micro_batch.max(1) as u64;
        let rows = split.rows().min(rows);
        Self { split, rows, micro_batch, mask_padding }
    }

    /// The loss, when all batches are recorded in `values`.
    ///
    /// # Errors
    /// If there is no valid token, or the loss is not finite.
    pub fn finish(&self, values: &[f64]) -> Result<ValidationLoss, EvalError> {
        let (mut sum, mut tokens, mut bytes) = (0.0, 0.0, 0.0);
        for batch in values.chunks_exact(VALUES_PER_BATCH) {
            sum += batch[0];
            tokens += batch[1];
            bytes += batch[2];
        }
        if tokens == 0.0 {
            return Err(EvalError::Request("the validation split holds no token to predict".into()));
        }
        if !sum.is_finite() {
            return Err(EvalError::NotFinite("validation loss"));
        }
        let bytes = self.split.knows_text_bytes().then_some(bytes as u64);
        Ok(ValidationLoss { loss: sum / tokens, tokens: tokens as u64, bytes })
    }
}

impl Batches for LossBatches<'_> {
    fn count(&self) -> usize {
        self.rows.div_ceil(self.micro_batch) as usize
    }

    fn fill(&self, index: usize, out: &mut Rows) -> Result<(), EvalError> {
        let start = index as u64 * self.micro_batch;
        self.split.fill(start..self.rows.min(start + self.micro_batch), out)?;
        if !self.mask_padding {
            out.filled.clear();
        }
        Ok(())
    }

    fn value_count(&self) -> usize {
        VALUES_PER_BATCH * self.count()
    }

    fn record_losses(&self, index: usize, rows: &Rows, losses: &[f32], values: &mut [f64]) -> Result<(), EvalError> {
        batches::check_losses(rows, losses)?;
        let values = &mut values[VALUES_PER_BATCH * index..][..VALUES_PER_BATCH];
        values[0] = losses.iter().copied().map(f64::from).sum();
        values[1] = rows.valid() as f64;
        values[2] = self.split.text_bytes(rows).unwrap_or(0) as f64;
        Ok(())
    }
}
