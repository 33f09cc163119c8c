//! Ranks that must hold the same numbers show each other a hash of them.

use candle_core::Tensor;

use super::error::ExecError;
use super::peers::Links;
use super::step::Trainer;
use runner_compute::kernels::{bytes, on_host};
use runner_spec::program::{Mode, Program};
use runner_spec::topology::GroupId;

/// Replicas hold the same weights and moments, and both ends of a pipeline the same tied embedding.
///
/// # Errors
/// `Diverged`, if they do not.
pub(super) fn states(links: &Links<'_>, program: &Program, trainer: &Trainer) -> Result<(), ExecError> {
    let state = &trainer.state;
    // Under dp the replicas get the root's weights every step: there is nothing of their own to compare.
    if program.mesh.replicas > 1 && program.mesh.mode != Mode::Dp {
        compare(links, links.replicas(), &state.buffer, state.step, "weights and moments")?;
    }
    if let Some(range) = trainer.tied(program).filter(|_| program.shares_tied()) {
        let view = state.buffer.narrow(0, range.start, range.len())?;
        compare(links, links.tied(), &view, state.step, "tied embedding")?;
    }
    Ok(())
}

fn compare(links: &Links<'_>, group: GroupId, tensor: &Tensor, step: u64, what: &'static str) -> Result<(), ExecError> {
    // On a CPU this is the tensor itself. Its bytes as they lie: ranks that are compared are of one kind of machine.
    let mine = bytes::read(&on_host(tensor)?, blake3::hash)?;
    let mut said = step.to_le_bytes().to_vec();
    said.extend(mine.as_bytes());
    let all = links.comm.all_gather(group, &said)?;
    if all.iter().all(|other| *other == said) {
        return Ok(());
    }
    Err(ExecError::Diverged { step, what })
}
