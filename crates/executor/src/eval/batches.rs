//! An evaluation as a fixed list of batches, whichever ranks run them: replicas share the list, and a batch goes through the
//! stages of a pipeline. The result does not depend on either, bit for bit.

use crate::error::ExecError;
use runner_compute::model::{Model, Params};
use runner_compute::nn::MicroBatch;
use runner_spec::data::Rows;

/// The batches of an evaluation, and how results are made of their losses.
pub trait Batches {
    /// The number of batches. Batch i belongs to replica i mod n: see `indices_of_replica`.
    fn count(&self) -> usize;

    /// Fills `out` with batch `index`: inputs and targets.
    ///
    /// # Errors
    /// If the data cannot be read.
    fn fill(&self, index: usize, out: &mut Rows) -> Result<(), ExecError>;

    /// The number of numbers in which all batches are recorded. Each number belongs to one batch alone, and is 0 where that batch has
    /// not run. So the numbers of different batches add up one by one, without rounding and in any order (an all-reduce will do). Sums
    /// over batches are taken at the end, in the order of the batches.
    fn value_count(&self) -> usize;

    /// Records batch `index` in `values`: `rows` as `fill` gave them, `losses` of each of their tokens in nats.
    ///
    /// # Errors
    /// If `losses` are not those of the batch.
    fn record_losses(&self, index: usize, rows: &Rows, losses: &[f32], values: &mut [f64]) -> Result<(), ExecError>;
}

/// The indices that belong to `replica`, out of `count` that `replicas` divide among them.
pub fn indices_of_replica(count: usize, replica: usize, replicas: usize) -> impl Iterator<Item = usize> {
    (replica..count).step_by(replicas.max(1))
}

/// Runs the batches `indices`. `run` runs one through the part of the model that begins with `model` in this process, and returns the loss
/// of each token in nats; `None` if another rank computes them. Returns the numbers that this rank records.
///
/// # Errors
/// If the data cannot be read, or an id is beyond the vocabulary; those of `run`.
pub fn run_batches(
    batches: &dyn Batches,
    indices: impl Iterator<Item = usize>,
    model: &Model,
    mut run: impl FnMut(&MicroBatch) -> Result<Option<Vec<f32>>, ExecError>,
) -> Result<Vec<f64>, ExecError> {
    let (mut values, mut rows) = (vec![0.0; batches.value_count()], Rows::default());
    for index in indices {
        batches.fill(index, &mut rows)?;
        let mb =
            model.micro_batch(&rows.inputs, rows.targets.clone(), rows.length)?.with_valid_lengths(&rows.filled)?;
        if let Some(losses) = run(&mb)? {
            batches.record_losses(index, &rows, &losses, &mut values)?;
        }
    }
    Ok(values)
}

/// Runs all batches through a whole model.
///
/// # Errors
/// If the data cannot be read, or an id is beyond the vocabulary.
pub fn run_all_batches(batches: &dyn Batches, model: &Model, params: &Params) -> Result<Vec<f64>, ExecError> {
    run_batches(batches, 0..batches.count(), model, |mb| Ok(Some(model.losses(params, mb)?)))
}

/// Checks that there is one loss for each token of `rows`.
pub(super) fn check_losses(rows: &Rows, losses: &[f32]) -> Result<(), ExecError> {
    if rows.inputs.len() == losses.len() {
        return Ok(());
    }
    Err(ExecError::Request(format!("{} losses for {} tokens", losses.len(), rows.inputs.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_batch_belongs_to_one_replica() {
        for replicas in 1..5 {
            let mut all: Vec<usize> = (0..replicas).flat_map(|r| indices_of_replica(7, r, replicas)).collect();
            all.sort_unstable();
            assert_eq!(all, (0..7).collect::<Vec<_>>());
        }
        assert_eq!(indices_of_replica(2, 3, 4).count(), 0, "more replicas than batches");
    }
}
