//! Gives a rank the weights that other ranks update.

use std::ops::Range;

use super::error::ExecError;
use super::rank_context::RankContext;
use super::trainer::Trainer;
use runner_comm::{GroupOperation, Pending};
use runner_spec::model::layout::common_range;

/// dp: all ranks get the root's weights.
///
/// # Errors
/// Those of the communication.
pub(super) fn broadcast_weights(context: RankContext<'_>, trainer: &Trainer) -> Result<(), ExecError> {
    context.comm.run(context.replica_group(), GroupOperation::Broadcast { root: 0 }, &trainer.state.weights()?)?;
    Ok(trainer.refresh()?)
}

/// A bucket whose weights are on their way: the elements that each replica sends, and the transfer.
struct GatheringBucket {
    bucket: usize,
    sent: Vec<Range<usize>>,
    pending: Pending,
}

/// The weights that replicas with shards send each other.
pub(super) struct WeightExchange<'a> {
    context: RankContext<'a>,
    gathering: Vec<GatheringBucket>,
}

impl<'a> WeightExchange<'a> {
    pub(super) fn new(context: RankContext<'a>) -> Self {
        Self { context, gathering: Vec::new() }
    }

    /// Starts to gather the weights of `bucket`: each replica sends those in its shard to the others.
    ///
    /// # Errors
    /// If memory is short, and those of the communication.
    pub(super) fn prefetch(&mut self, trainer: &mut Trainer, bucket: usize) -> Result<(), ExecError> {
        let (context, program) = (self.context, self.context.program);
        let ranges = trainer.weights.layout.block_ranges(program.buckets[bucket].range());
        trainer.hold_weights(&ranges)?;
        let (mut sent, mut operations) = (Vec::new(), Vec::new());
        for range in &ranges {
            for (replica, shard) in program.shards.iter().enumerate() {
                let Some(part) = common_range(range, shard) else { continue };
                let root = program.mesh.rank(context.stage, replica);
                let tensors = trainer.weights.sent(&part)?;
                operations.extend(tensors.into_iter().map(|t| (GroupOperation::Broadcast { root }, vec![t])));
                sent.push(part);
            }
        }
        let pending = context.comm.start(context.replica_group(), operations)?;
        self.gathering.push(GatheringBucket { bucket, sent, pending });
        Ok(())
    }

    /// Completes what [`Self::prefetch`] of `bucket` started, or starts it now.
    ///
    /// # Errors
    /// Those of `prefetch`.
    pub(super) fn gather(&mut self, trainer: &mut Trainer, bucket: usize) -> Result<(), ExecError> {
        let started = self.gathering.iter().position(|started| started.bucket == bucket);
        let index = if let Some(index) = started {
            index
        } else {
            self.prefetch(trainer, bucket)?;
            self.gathering.len() - 1
        };
        let GatheringBucket { sent, pending, .. } = self.gathering.swap_remove(index);
        pending.wait()?;
        sent.iter().try_for_each(|part| trainer.weights.round_received(part))?;
        Ok(())
    }

    /// Gathers every bucket: afterwards all replicas have the same weights.
    ///
    /// # Errors
    /// Those of `gather`.
    pub(super) fn gather_all(&mut self, trainer: &mut Trainer) -> Result<(), ExecError> {
        let buckets = if self.context.program.shards.is_empty() { 0 } else { self.context.program.buckets.len() };
        (0..buckets).try_for_each(|bucket| self.gather(trainer, bucket))
    }
}
