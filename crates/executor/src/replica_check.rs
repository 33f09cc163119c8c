//! The check that ranks which must hold the same numbers do so: they compare hashes.

use candle_core::Tensor;

use super::error::ExecError;
use super::rank_context::RankContext;
use super::trainer::Trainer;
use runner_compute::kernels::{bytes, on_host};
use runner_spec::topology::GroupId;

/// Compares the weights and moments of replicas, and the tied embedding of the two stages that hold it.
///
/// # Errors
/// `Diverged`, if they differ.
pub(super) fn compare_states(context: RankContext<'_>, trainer: &Trainer) -> Result<(), ExecError> {
    let (state, program) = (&trainer.state, context.program);
    if !program.shards.is_empty() {
        // Each number is held once, apart from a tied embedding, whose two copies different replicas may hold.
        return Ok(());
    }
    // Replicas that get their weights from others every step have nothing else to compare.
    if program.mesh.replicas > 1 && program.weight_exchange().is_empty() {
        compare(context, context.replica_group(), &state.buffer, state.step, "weights and moments")?;
    }
    if let Some(range) = trainer.tied_range(program).filter(|_| program.shares_tied()) {
        let embedding = state.buffer.narrow(0, range.start, range.len())?;
        compare(context, context.tied_group(), &embedding, state.step, "tied embedding")?;
    }
    Ok(())
}

fn compare(
    context: RankContext<'_>,
    group: GroupId,
    tensor: &Tensor,
    step: u64,
    what: &'static str,
) -> Result<(), ExecError> {
    // The hash is of bytes in the machine's own order: ranks that are compared are on machines of one kind.
    let hash = bytes::read(&on_host(tensor)?, blake3::hash)?;
    let mut message = step.to_le_bytes().to_vec();
    message.extend(hash.as_bytes());
    let all = context.comm.all_gather(group, &message)?;
    if all.iter().all(|other| *other == message) { Ok(()) } else { Err(ExecError::ReplicasDiffer { step, what }) }
}
