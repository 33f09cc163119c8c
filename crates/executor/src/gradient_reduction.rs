//! Sums of gradients over ranks: of buckets over the replicas, and of a tied embedding over the two stages that hold it.

use std::ops::Range;

use candle_core::Tensor;

use super::error::ExecError;
use super::rank_context::RankContext;
use super::trainer::Trainer;
use runner_comm::{GroupOperation, Pending};
use runner_compute::model::Params;
use runner_spec::model::layout::common_range;

pub(super) struct GradientReduction<'a> {
    context: RankContext<'a>,
    pending: Vec<Pending>,
    /// The bucket whose gradients are being summed into the replicas' shards.
    scattering: Option<(usize, Pending)>,
}

impl<'a> GradientReduction<'a> {
    pub(super) fn new(context: RankContext<'a>) -> Self {
        Self { context, pending: Vec::new(), scattering: None }
    }

    /// Starts the sum of `bucket` over the replicas; `wait_buckets` ends it.
    pub(super) fn all_reduce(&mut self, trainer: &Trainer, bucket: usize) -> Result<(), ExecError> {
        let gradients = self.bucket_gradients(trainer, bucket)?;
        let operations = vec![(GroupOperation::AllReduce, gradients)];
        self.pending.push(self.context.comm.start(self.context.replica_group(), operations)?);
        Ok(())
    }

    /// Ends the sum of the bucket before, and starts that of `bucket`, of each shard's gradients into the replica that updates it.
    /// `wait_buckets` ends it.
    pub(super) fn reduce_scatter(&mut self, trainer: &mut Trainer, bucket: usize) -> Result<(), ExecError> {
        self.end_scatter(trainer)?;
        let (context, program) = (self.context, self.context.program);
        let mut operations = Vec::new();
        for range in self.bucket_ranges(trainer, bucket) {
            for (replica, shard) in program.shards.iter().enumerate() {
                let Some(part) = common_range(&range, shard) else { continue };
                let operation = GroupOperation::Reduce { root: program.mesh.rank(context.stage, replica) };
                operations.push((operation, vec![trainer.grads.narrow(&part)?]));
            }
        }
        self.scattering = Some((bucket, context.comm.start(context.replica_group(), operations)?));
        Ok(())
    }

    /// Keeps the sums of this rank's shard, and frees the bucket's gradients.
    fn end_scatter(&mut self, trainer: &mut Trainer) -> Result<(), ExecError> {
        let Some((bucket, pending)) = self.scattering.take() else { return Ok(()) };
        pending.wait()?;
        let ranges = self.bucket_ranges(trainer, bucket);
        trainer.keep_sums(&ranges)?;
        trainer.grads.release(&ranges);
        if self.context.program.batch.micro_batches() > 1 {
            // Every bucket has its buffer already.
            trainer.grads.free_spare();
        }
        Ok(())
    }

    /// Waits for every sum that was started.
    pub(super) fn wait_buckets(&mut self, trainer: &mut Trainer) -> Result<(), ExecError> {
        self.pending.drain(..).try_for_each(Pending::wait)?;
        self.end_scatter(trainer)
    }

    /// Sums `bucket` over the replicas into the first one.
    pub(super) fn reduce_to_root(&self, trainer: &Trainer, bucket: usize) -> Result<(), ExecError> {
        for gradients in self.bucket_gradients(trainer, bucket)? {
            self.context.comm.run(self.context.replica_group(), GroupOperation::Reduce { root: 0 }, &gradients)?;
        }
        Ok(())
    }

    /// Sums the gradients of the tied embedding over both stages that hold it.
    pub(super) fn sum_tied(&self, trainer: &Trainer) -> Result<(), ExecError> {
        let Some(range) = trainer.tied_range(self.context.program) else {
            return Err(ExecError::Program("this rank holds no tied embedding".to_owned()));
        };
        Ok(self.context.comm.run(
            self.context.tied_group(),
            GroupOperation::AllReduce,
            &trainer.grads.narrow(&range)?,
        )?)
    }

    fn bucket_ranges(&self, trainer: &Trainer, bucket: usize) -> Vec<Range<usize>> {
        trainer.grads.layout.block_ranges(self.context.program.buckets[bucket].range())
    }

    fn bucket_gradients(&self, trainer: &Trainer, bucket: usize) -> Result<Vec<Tensor>, ExecError> {
        let ranges = self.bucket_ranges(trainer, bucket);
        Ok(ranges.iter().map(|range| trainer.grads.narrow(range)).collect::<Result<_, _>>()?)
    }
}

/// The gradients, summed over the replicas; each replica sends the others those of its shard.
///
/// # Errors
/// If memory is short, and those of the communication.
pub(super) fn gather_sums(context: RankContext<'_>, trainer: &Trainer) -> Result<Params, ExecError> {
    let Some(sums) = &trainer.shard_gradients else { return Ok(trainer.grads.clone()) };
    let (layout, flat) = (&trainer.grads.layout, &trainer.grads.flat);
    let all = Params::zeroed_like(layout.clone(), flat)?;
    for (replica, shard) in context.program.shards.iter().enumerate() {
        if replica == context.replica {
            all.store(shard.start, sums)?;
        }
        let owner = context.program.mesh.rank(context.stage, replica);
        context.comm.run(context.replica_group(), GroupOperation::Broadcast { root: owner }, &all.narrow(shard)?)?;
    }
    Ok(all)
}
