//! Evaluation of a model on its own: validation loss, multiple choice, samples.

pub mod batches;
pub mod choice;
mod inference;
pub mod loss;
pub mod sample;

pub use batches::{Batches, indices_of_replica, run_all_batches, run_batches};
pub use choice::{ChoiceBatches, ChoiceScore, ScoredItem};
pub use inference::open_model;
pub use loss::{LossBatches, ValidationLoss};
pub use sample::{ChunkDecoder, Continuation, TokenFeed, continue_prompt, generate};

use std::time::Instant;

use crate::error::ExecError;
use runner_spec::event::{EvaluatedRows, Evaluation};
use runner_spec::measure::Measured;

/// Measures the loss of the model of `step`, if its batches are given, and the scores in `tasks`, which have names. `run` is called for each of
/// them: it runs all batches through the model, and returns the numbers in which they are recorded. Returns the results of rows and items too.
///
/// # Errors
/// Those of `run`, or if a result is not finite.
pub fn evaluate<'a>(
    step: u64,
    loss: Option<LossBatches<'_>>,
    tasks: impl Iterator<Item = (&'a str, ChoiceBatches<'a>)>,
    run: impl Fn(&dyn Batches) -> Result<Vec<f64>, ExecError>,
) -> Result<(Evaluation, EvaluatedRows), ExecError> {
    let started = Instant::now();
    let (mut measured, mut rows) = (Measured::default(), EvaluatedRows { step, ..EvaluatedRows::default() });
    if let Some(batches) = loss {
        let values = run(&batches)?;
        batches.finish(&values)?.add_to(&mut measured);
        (rows.losses, rows.tokens) = batches.rows(&values);
    }
    for (task, batches) in tasks {
        let items = batches.scored_items(&run(&batches)?)?;
        ChoiceScore::new(&items).add_to(&mut measured, task);
        rows.items.insert(task.to_owned(), items.iter().map(ScoredItem::right_digit).collect());
    }
    Ok((Evaluation { step, measured, eval_ms: Some(started.elapsed().as_secs_f64() * 1e3) }, rows))
}
