//! Validation loss: the mean over valid tokens, not over batches.

use super::EvalError;
use super::batches::{self, Batches};
use runner_data::Split;
use runner_spec::data::Rows;

/// Loss in nats per valid token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValidationLoss {
    pub loss: f64,
    pub tokens: u64,
}

impl ValidationLoss {
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }
}

/// The first rows of a split in batches of `micro_batch`; of each its summed loss and its valid tokens are kept.
#[derive(Debug, Clone, Copy)]
pub struct LossBatches<'a> {
    split: &'a Split,
    rows: u64,
    micro_batch: u64,
    mask_padding: bool,
}

impl<'a> LossBatches<'a> {
    /// The first `batches`·`micro_batch` rows of `split`, or all of it if it is shorter. With `mask_padding`, attention sees no padding.
    pub fn new(split: &'a Split, batches: usize, micro_batch: usize, mask_padding: bool) -> Self {
        let micro_batch = micro_batch.max(1) as u64;
        let rows = split.rows().min((batches as u64).saturating_mul(micro_batch));
        Self { split, rows, micro_batch, mask_padding }
    }

    /// The loss, when all batches are recorded in `values`.
    ///
    /// # Errors
    /// If there is no valid token, or the loss is not finite.
    pub fn finish(&self, values: &[f64]) -> Result<ValidationLoss, EvalError> {
        let (mut sum, mut tokens) = (0.0, 0.0);
        for batch in values.chunks_exact(2) {
            sum += batch[0];
            tokens += batch[1];
        }
        if tokens == 0.0 {
            return Err(EvalError::Request("the validation split holds no token to predict".into()));
        }
        if !sum.is_finite() {
            return Err(EvalError::NotFinite("validation loss"));
        }
        Ok(ValidationLoss { loss: sum / tokens, tokens: tokens as u64 })
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
        2 * self.count()
    }

    fn record_losses(&self, index: usize, rows: &Rows, losses: &[f32], values: &mut [f64]) -> Result<(), EvalError> {
        batches::check_losses(rows, losses)?;
        values[2 * index] = losses.iter().copied().map(f64::from).sum();
        values[2 * index + 1] = rows.valid() as f64;
        Ok(())
    }
}
