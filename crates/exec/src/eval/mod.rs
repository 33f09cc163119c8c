//! Evaluation of a model on its own: validation loss, multiple choice, samples.

pub mod batches;
pub mod choice;
mod inference;
pub mod loss;
pub mod sample;
mod text_stream;

pub use batches::{Batches, indices_of_replica, run_all_batches, run_batches};
pub use choice::{ChoiceBatches, ChoiceScore, ScoredItem};
pub use inference::InferenceSettings;
pub use loss::{LossBatches, ValidationLoss};
pub use sample::{ChunkDecoder, Continuation, Drawn, TokenFeed, continue_prompt, generate};

use std::time::Instant;

pub use crate::error::EvalError;
use runner_spec::event::EvalMetrics;

/// Measures the loss and the multiple-choice score of the model of `step`, where their batches are given. `run` is called for each of the
/// two: it runs all batches through the model, and returns the numbers in which they are recorded.
///
/// # Errors
/// Those of `run`, or if a result is not finite.
pub fn evaluate<E: From<EvalError>>(
    step: u64,
    loss: Option<LossBatches<'_>>,
    choice: Option<ChoiceBatches<'_>>,
    run: impl Fn(&dyn Batches) -> Result<Vec<f64>, E>,
) -> Result<EvalMetrics, E> {
    let started = Instant::now();
    let mut metrics = EvalMetrics { step, ..EvalMetrics::default() };
    if let Some(batches) = loss {
        let result = batches.finish(&run(&batches)?)?;
        metrics.val_loss = Some(result.loss);
        metrics.val_loss_se = result.standard_error;
        (metrics.val_tokens, metrics.val_rows) = (Some(result.tokens), Some(result.rows));
        metrics.val_perplexity = Some(result.perplexity());
        metrics.val_bits_per_byte = result.bits_per_byte();
    }
    if let Some(batches) = choice {
        let score = batches.finish(&run(&batches)?)?;
        metrics.hellaswag_acc = Some(score.acc());
        metrics.hellaswag_acc_norm = Some(score.acc_norm());
        metrics.hellaswag_acc_norm_chars = Some(score.acc_norm_chars());
        metrics.hellaswag_n = Some(score.items as u64);
        metrics.hellaswag_cut = (score.cut > 0).then_some(score.cut as u64);
    }
    metrics.eval_ms = started.elapsed().as_secs_f64() * 1e3;
    Ok(metrics)
}
