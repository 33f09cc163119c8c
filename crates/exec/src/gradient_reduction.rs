//! Sums of gradients over ranks: of buckets over the replicas, and of a tied embedding over the two stages that hold it.

use std::ops::Range;

use candle_core::Tensor;

use super::error::ExecError;
use super::rank_context::RankContext;
use super::trainer::Trainer;
use runner_comm::Pending;

pub(super) struct GradientReduction<'a> {
    context: RankContext<'a>,
    pending: Vec<Pending>,
}

impl<'a> GradientReduction<'a> {
    pub(super) fn new(context: RankContext<'a>) -> Self {
        Self { context, pending: Vec::new() }
    }

    /// Starts the sum of `bucket` over the replicas; `wait_buckets` ends it.
    pub(super) fn all_reduce(&mut self, trainer: &Trainer, bucket: usize) -> Result<(), ExecError> {
        let gradients = self.bucket_gradients(trainer, bucket)?;
        self.pending.push(self.context.comm.start_all_reduce(self.context.replica_group(), gradients)?);
        Ok(())
    }

    /// Waits for every sum that `all_reduce` started.
    pub(super) fn wait_buckets(&mut self) -> Result<(), ExecError> {
        for pending in self.pending.drain(..) {
            pending.wait()?;
        }
        Ok(())
    }

    /// Sums `bucket` over the replicas into the first one.
    pub(super) fn reduce_to_root(&self, trainer: &Trainer, bucket: usize) -> Result<(), ExecError> {
        for gradients in self.bucket_gradients(trainer, bucket)? {
            self.context.comm.reduce(self.context.replica_group(), 0, &gradients)?;
        }
        Ok(())
    }

    /// Sums the gradients of the tied embedding over both stages that hold it.
    pub(super) fn sum_tied(&self, trainer: &Trainer) -> Result<(), ExecError> {
        let Some(range) = trainer.tied_range(self.context.program) else {
            return Err(ExecError::Program("this rank holds no tied embedding".to_owned()));
        };
        Ok(self.context.comm.all_reduce(self.context.tied_group(), &gradients_of(trainer, &range)?)?)
    }

    fn bucket_gradients(&self, trainer: &Trainer, bucket: usize) -> Result<Vec<Tensor>, ExecError> {
        let ranges = trainer.grads.layout.block_ranges(self.context.program.buckets[bucket].range());
        Ok(ranges.iter().map(|range| gradients_of(trainer, range)).collect::<Result<_, _>>()?)
    }
}

fn gradients_of(trainer: &Trainer, range: &Range<usize>) -> candle_core::Result<Tensor> {
    trainer.grads.flat.narrow(0, range.start, range.len())
}
