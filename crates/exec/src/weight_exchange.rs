//! Gives a rank the weights that other ranks update.

use candle_core::Tensor;

use super::error::ExecError;
use super::rank_context::RankContext;
use super::trainer::Trainer;
use runner_spec::model::layout::common_range;
use runner_spec::program::ParallelMode;

/// dp: all ranks get the root's weights.
///
/// # Errors
/// In other modes, and those of the communication.
pub(super) fn broadcast_weights(context: RankContext<'_>, trainer: &Trainer) -> Result<(), ExecError> {
    if context.program.mesh.mode != ParallelMode::Dp {
        return Err(ExecError::Program("weights are broadcast under dp only".to_owned()));
    }
    context.comm.broadcast(context.replica_group(), 0, &trainer.state.weights()?)?;
    Ok(trainer.refresh()?)
}

/// Each replica sends the weights of `bucket` in its shard to the others.
///
/// # Errors
/// Those of the communication.
pub(super) fn gather_parameters(context: RankContext<'_>, trainer: &Trainer, bucket: usize) -> Result<(), ExecError> {
    let (program, weights) = (context.program, &trainer.weights);
    for range in weights.layout.block_ranges(program.buckets[bucket].range()) {
        for (replica, shard) in program.shards.iter().enumerate() {
            let Some(sent) = common_range(&range, shard) else { continue };
            let owner = program.mesh.rank(context.stage, replica);
            let send = |tensor: &Tensor| context.comm.broadcast(context.replica_group(), owner, tensor);
            weights.sent(&sent)?.iter().try_for_each(send)?;
            weights.round_received(&sent)?;
        }
    }
    Ok(())
}

/// Every bucket: afterwards all replicas have the same weights.
///
/// # Errors
/// Those of the communication.
pub(super) fn gather_all_parameters(context: RankContext<'_>, trainer: &Trainer) -> Result<(), ExecError> {
    let buckets = if context.program.shards.is_empty() { 0 } else { context.program.buckets.len() };
    (0..buckets).try_for_each(|bucket| gather_parameters(context, trainer, bucket))
}
