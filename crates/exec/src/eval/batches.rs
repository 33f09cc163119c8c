//! An evaluation as a fixed list of batches, whichever ranks run them: replicas share the list, and a batch goes through the
//! stages of a pipeline. The result does not depend on either, bit for bit.

use super::EvalError;
use runner_compute::model::{Model, Params};
use runner_spec::data::Rows;

/// The batches of an evaluation, and how results are made of their losses.
pub trait Batches {
    /// The number of batches. Batch i belongs to replica i mod n: see `share`.
    fn count(&self) -> usize;

    /// Fills `out` with batch `index`: inputs and targets.
    ///
    /// # Errors
    /// If the data cannot be read.
    fn fill(&self, index: usize, out: &mut Rows) -> Result<(), EvalError>;

    /// The results before any batch has run.
    fn partial(&self) -> Partial;

    /// Enters batch `index` into `partial`: `rows` as `fill` gave them, `losses` of each of their tokens in nats.
    ///
    /// # Errors
    /// If `losses` are not those of the batch.
    fn enter(&self, index: usize, rows: &Rows, losses: &[f32], partial: &mut Partial) -> Result<(), EvalError>;
}

/// Results of some of the batches: a fixed list of numbers, each of which one batch alone enters; 0 where that batch has not
/// run. So results of different batches add up element by element, without rounding and in any order (an all-reduce will do).
/// Sums over batches are taken at the end, in the order of the batches.
#[derive(Debug, Clone, PartialEq)]
pub struct Partial {
    pub values: Vec<f64>,
}

impl Partial {
    pub fn zeros(len: usize) -> Self {
        Self { values: vec![0.0; len] }
    }

    /// Adds the results of other batches of the same evaluation.
    ///
    /// # Errors
    /// If `other` is of another evaluation.
    pub fn merge(&mut self, other: &Self) -> Result<(), EvalError> {
        if self.values.len() != other.values.len() {
            let (ours, theirs) = (self.values.len(), other.values.len());
            return Err(EvalError::Request(format!("results of {theirs} numbers do not add to {ours}")));
        }
        for (a, b) in self.values.iter_mut().zip(&other.values) {
            *a += b;
        }
        Ok(())
    }
}

/// The batches of `replica`, out of `replicas`.
pub fn share(count: usize, replica: usize, replicas: usize) -> impl Iterator<Item = usize> {
    (replica..count).step_by(replicas.max(1))
}

/// Runs the batches `indices` through a whole model.
///
/// # Errors
/// If the data cannot be read, or an id is beyond the vocabulary.
pub fn run_batches(
    batches: &dyn Batches,
    indices: impl Iterator<Item = usize>,
    model: &Model,
    params: &Params,
) -> Result<Partial, EvalError> {
    let (mut partial, mut rows) = (batches.partial(), Rows::default());
    for index in indices {
        batches.fill(index, &mut rows)?;
        let mb =
            model.micro_batch(&rows.inputs, rows.targets.clone(), rows.length)?.with_valid_lengths(&rows.filled)?;
        batches.enter(index, &rows, &model.losses(params, &mb)?, &mut partial)?;
    }
    Ok(partial)
}

/// Checks that there is one loss for each token of `rows`.
pub(super) fn check_losses(rows: &Rows, losses: &[f32]) -> Result<(), EvalError> {
    if rows.inputs.len() == losses.len() {
        return Ok(());
    }
    Err(EvalError::Request(format!("{} losses for {} tokens", losses.len(), rows.inputs.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_batch_belongs_to_one_replica() {
        for replicas in 1..5 {
            let mut all: Vec<usize> = (0..replicas).flat_map(|r| share(7, r, replicas)).collect();
            all.sort_unstable();
            assert_eq!(all, (0..7).collect::<Vec<_>>());
        }
        assert_eq!(share(2, 3, 4).count(), 0, "more replicas than batches");
    }

    #[test]
    fn results_of_other_evaluations_do_not_add() {
        assert!(Partial::zeros(2).merge(&Partial::zeros(3)).is_err());
    }
}
