//! Ranks that must hold the same numbers show each other a hash of them.

use candle_core::{CpuStorage, Device, Storage, Tensor};

use super::error::ExecError;
use super::peers::Links;
use super::step::Trainer;
use crate::comm::GroupId;
use crate::plan::program::{Mode, Program};

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
    let mine = hash(tensor)?;
    let mut said = step.to_le_bytes().to_vec();
    said.extend(mine.as_bytes());
    let all = links.comm.all_gather(group, &said)?;
    if all.iter().all(|other| *other == said) {
        return Ok(());
    }
    Err(ExecError::Diverged { step, what })
}

fn hash(tensor: &Tensor) -> Result<blake3::Hash, ExecError> {
    // On a CPU this is the tensor itself.
    let host = tensor.to_device(&Device::Cpu)?;
    let (storage, layout) = host.storage_and_layout();
    let mut hasher = blake3::Hasher::new();
    let mut bytes = Vec::new();
    let range = layout.contiguous_offsets().ok_or_else(|| ExecError::Program("a strided state".to_owned()))?;
    match &*storage {
        Storage::Cpu(CpuStorage::F32(values)) => {
            for chunk in values[range.0..range.1].chunks(1 << 14) {
                bytes.clear();
                bytes.extend(chunk.iter().flat_map(|x| x.to_le_bytes()));
                hasher.update(&bytes);
            }
        }
        Storage::Cpu(CpuStorage::F64(values)) => {
            for chunk in values[range.0..range.1].chunks(1 << 14) {
                bytes.clear();
                bytes.extend(chunk.iter().flat_map(|x| x.to_le_bytes()));
                hasher.update(&bytes);
            }
        }
        _ => return Err(ExecError::Program("a state of this element type cannot be hashed".to_owned())),
    }
    Ok(hasher.finalize())
}
