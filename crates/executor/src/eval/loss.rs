//! Validation loss: the mean over valid tokens, not over batches.

use super::batches::{self, Batches};
use crate::error::ExecError;
use runner_data::Split;
use runner_spec::data::{IGNORED_TARGET, Rows};
use runner_spec::measure::{Measure, Measured};

/// The summed loss of a batch, its valid tokens, and the bytes of text that they stand for; then, over its rows, the sums of loss², of
/// loss · tokens and of tokens², from which the standard error follows.
const VALUES_PER_BATCH: usize = 6;
/// The summed loss of a row, and its valid tokens. The rows follow the batches.
const VALUES_PER_ROW: usize = 2;

/// Loss in nats per valid token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValidationLoss {
    pub loss: f64,
    pub tokens: u64,
    pub rows: u64,
    /// The standard error of the loss over the rows, in nats; `None` for one row.
    pub standard_error: Option<f64>,
    /// The bytes of text that the tokens stand for; `None` if they are not known.
    pub bytes: Option<u64>,
}

impl ValidationLoss {
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }

    /// Adds all of it to `measured`.
    pub fn add_to(&self, measured: &mut Measured) {
        measured.set(Measure::VAL_LOSS, self.loss);
        for (measure, value) in [
            (Measure::VAL_LOSS_SE, self.standard_error),
            (Measure::VAL_TOKENS, Some(self.tokens as f64)),
            (Measure::VAL_ROWS, Some(self.rows as f64)),
            (Measure::VAL_PERPLEXITY, Some(self.perplexity())),
            (Measure::BITS_PER_BYTE, self.bits_per_byte()),
        ] {
            if let Some(value) = value {
                measured.set(measure, value);
            }
        }
    }

    /// The summed loss in bits over the bytes of text: a figure that does not depend on the tokenizer.
    pub fn bits_per_byte(&self) -> Option<f64> {
        let bytes = self.bytes.filter(|&bytes| bytes > 0)?;
        Some(self.loss * self.tokens as f64 / (bytes as f64 * std::f64::consts::LN_2))
    }
}

/// The first rows of a split in batches of `micro_batch`. The summed loss and the valid tokens of each batch and of each row are recorded, and
/// the bytes of each batch.
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
    pub fn finish(&self, values: &[f64]) -> Result<ValidationLoss, ExecError> {
        let mut sums = [0.0; VALUES_PER_BATCH];
        for batch in values[..self.rows_at()].chunks_exact(VALUES_PER_BATCH) {
            sums.iter_mut().zip(batch).for_each(|(sum, value)| *sum += value);
        }
        let [sum, tokens, bytes, ..] = sums;
        if tokens == 0.0 {
            return Err(ExecError::Request("the validation split holds no token to predict".into()));
        }
        if !sum.is_finite() {
            return Err(ExecError::ResultNotFinite("validation loss"));
        }
        let bytes = self.split.knows_text_bytes().then_some(bytes as u64);
        Ok(ValidationLoss {
            loss: sum / tokens,
            tokens: tokens as u64,
            rows: self.rows,
            standard_error: standard_error(self.rows, sums),
            bytes,
        })
    }

    /// The summed loss and the valid tokens of each row, when all batches are recorded in `values`.
    pub fn rows(&self, values: &[f64]) -> (Vec<f32>, Vec<u32>) {
        values[self.rows_at()..].chunks_exact(VALUES_PER_ROW).map(|row| (row[0] as f32, row[1] as u32)).unzip()
    }

    /// Where the values of the rows begin.
    fn rows_at(&self) -> usize {
        VALUES_PER_BATCH * self.count()
    }
}

impl Batches for LossBatches<'_> {
    fn count(&self) -> usize {
        self.rows.div_ceil(self.micro_batch) as usize
    }

    fn fill(&self, index: usize, out: &mut Rows) -> Result<(), ExecError> {
        let start = index as u64 * self.micro_batch;
        self.split.fill(start..self.rows.min(start + self.micro_batch), out)?;
        if !self.mask_padding {
            out.filled.clear();
        }
        Ok(())
    }

    fn value_count(&self) -> usize {
        self.rows_at() + VALUES_PER_ROW * self.rows as usize
    }

    fn record_losses(&self, index: usize, rows: &Rows, losses: &[f32], values: &mut [f64]) -> Result<(), ExecError> {
        batches::check_losses(rows, losses)?;
        let (batches, of_rows) = values.split_at_mut(self.rows_at());
        let values = &mut batches[VALUES_PER_BATCH * index..][..VALUES_PER_BATCH];
        let of_rows = of_rows[VALUES_PER_ROW * self.micro_batch as usize * index..].chunks_exact_mut(VALUES_PER_ROW);
        values[0] = losses.iter().copied().map(f64::from).sum();
        values[1] = rows.valid() as f64;
        values[2] = self.split.text_bytes(rows).unwrap_or(0) as f64;
        let all = losses.chunks_exact(rows.length).zip(rows.targets.chunks_exact(rows.length));
        for ((losses, targets), of_row) in all.zip(of_rows) {
            let loss: f64 = losses.iter().copied().map(f64::from).sum();
            let tokens = targets.iter().filter(|&&target| target != IGNORED_TARGET).count() as f64;
            for (sum, product) in values[3..].iter_mut().zip([loss * loss, loss * tokens, tokens * tokens]) {
                *sum += product;
            }
            of_row.copy_from_slice(&[loss, tokens]);
        }
        Ok(())
    }
}

/// The standard error of the mean loss per token over `rows` rows, taken as independent. It follows from the rows' residuals,
/// loss − mean · tokens. Rows of one document resemble each other, so it is somewhat too small. `None` for one row.
fn standard_error(
    rows: u64,
    [sum, tokens, _, squares, products, squared_tokens]: [f64; VALUES_PER_BATCH],
) -> Option<f64> {
    let mean = sum / tokens;
    let residuals = (squares - 2.0 * mean * products + mean * mean * squared_tokens).max(0.0);
    (rows > 1).then(|| (residuals * rows as f64 / (rows - 1) as f64).sqrt() / tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: rows of 2, 2 and 4 tokens with summed losses 2, 4 and 10 have the mean 2 and the residuals −2, 0 and 2, so the error is
    /// √(8 · 3/2) / 8.
    #[test]
    fn the_standard_error_is_that_of_a_ratio() {
        let rows = [(2.0, 2.0), (4.0, 2.0), (10.0, 4.0)];
        let sum = |value: fn(&(f64, f64)) -> f64| rows.iter().map(value).sum::<f64>();
        let sums = [sum(|r| r.0), sum(|r| r.1), 0.0, sum(|r| r.0 * r.0), sum(|r| r.0 * r.1), sum(|r| r.1 * r.1)];
        assert!((standard_error(3, sums).unwrap() - 12_f64.sqrt() / 8.0).abs() < 1e-12);
        assert_eq!(standard_error(1, sums), None);
        assert_eq!(standard_error(2, [6.0, 4.0, 0.0, 18.0, 12.0, 8.0]), Some(0.0), "equal rows");
    }
}
