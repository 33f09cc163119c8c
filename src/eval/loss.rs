//! Validation loss: the mean over valid tokens, not over batches.

use super::EvalError;
use crate::data::{Rows, Split};
use crate::model::{Model, Params};

/// Loss in nats per valid token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValidationLoss {
    pub loss: f64,
    pub tokens: u64,
}

impl ValidationLoss {
    #[must_use]
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }
}

/// The loss over the first `batches`·`micro_batch` rows of `split`, or all of it if it is shorter.
///
/// # Errors
/// If the split cannot be read or holds no valid token.
pub fn validation_loss(
    model: &Model,
    params: &Params,
    split: &Split,
    batches: usize,
    micro_batch: usize,
) -> Result<ValidationLoss, EvalError> {
    let rows = split.rows().min((batches as u64).saturating_mul(micro_batch as u64));
    let mut batch = Rows::default();
    let (mut sum, mut tokens, mut start) = (0.0, 0, 0);
    while start < rows {
        let end = rows.min(start + micro_batch as u64);
        split.fill(start..end, &mut batch)?;
        tokens += batch.valid();
        let targets = std::mem::take(&mut batch.targets);
        let mb = model.micro_batch(&batch.inputs, targets, batch.length)?;
        sum += model.losses(params, &mb)?.iter().copied().map(f64::from).sum::<f64>();
        start = end;
    }
    if tokens == 0 {
        return Err(EvalError::Request("the validation split holds no token to predict".into()));
    }
    if !sum.is_finite() {
        return Err(EvalError::NotFinite("validation loss"));
    }
    Ok(ValidationLoss { loss: sum / tokens as f64, tokens })
}
