//! Reads what a checkpoint records about itself, and compares two checkpoints tensor by tensor.

use std::collections::BTreeMap;
use std::path::Path;

use super::entries::{self, CheckpointChoice};
use super::format::{STATE, SavedPosition, StateFile};
use super::hash::hash_bytes;
use super::load::{self, CheckpointProblem, StoredCheckpoint};
use super::names::dir_name;
use super::part::StateHash;
use crate::error::RecordError;
use crate::files::is_as_sealed;

/// The step of the checkpoint in `folder` that `which` asks for.
///
/// # Errors
/// If there is no such checkpoint, with what there is.
pub fn chosen_step(folder: &Path, which: CheckpointChoice) -> Result<u64, RecordError> {
    entries::pick(folder, which).map(|entry| entry.step)
}

/// The recorded hash of the checkpoint of `step` in `folder`; `None` if there is none, or its state file cannot be read.
pub fn recorded_hash(folder: &Path, step: u64) -> Option<StateHash> {
    load::state_file(&folder.join(dir_name(step))).ok().map(|file| file.hash())
}

/// True if the files of the checkpoint of `step` in `folder`, of the plan `plan_hash`, are as this program writes them: no other keys, and no
/// other metadata.
///
/// # Errors
/// If it is missing, damaged or of a different plan.
pub fn is_checkpoint_as_written(folder: &Path, step: u64, plan_hash: &str) -> Result<bool, RecordError> {
    let path = folder.join(dir_name(step));
    let opened = StoredCheckpoint::open(&path, Some(plan_hash)).map_err(|bad| bad.error(&path, String::new))?;
    Ok(is_as_sealed::<StateFile>(&path.join(STATE))? && opened.has_headers_as_written())
}

/// The recorded position of the checkpoint of `step` in `folder`; `None` if there is none, or its state file cannot be read.
pub fn recorded_position(folder: &Path, step: u64) -> Option<SavedPosition> {
    load::state_file(&folder.join(dir_name(step))).ok().map(|file| SavedPosition { step, ..file.saved_position() })
}

/// The name of the first tensor, weights before moments, that differs between the checkpoints of `step` in the folders `a` and `b`;
/// `None` if they are equal. Names of moments end in `.m` and `.v`.
///
/// # Errors
/// If one of them is missing, damaged or cannot be read.
pub fn first_difference(a: &Path, b: &Path, step: u64) -> Result<Option<String>, RecordError> {
    let tensor_hashes = |folder: &Path| {
        let path = folder.join(dir_name(step));
        hash_tensors(&path).map_err(|bad| bad.error(&path, String::new))
    };
    let (a, b) = (tensor_hashes(a)?, tensor_hashes(b)?);
    let theirs: BTreeMap<&str, &blake3::Hash> = b.iter().map(|(name, hash)| (name.as_str(), hash)).collect();
    let differs = a.iter().find(|(name, hash)| theirs.get(name.as_str()) != Some(&hash));
    Ok(differs.map(|(name, _)| name.clone()))
}

/// The hash of every tensor of a checkpoint, over its bytes.
fn hash_tensors(path: &Path) -> Result<Vec<(String, blake3::Hash)>, CheckpointProblem> {
    let stored = StoredCheckpoint::open(path, None)?;
    let (places, names) = stored.everything();
    let mut hashers = vec![blake3::Hasher::new(); names.len()];
    stored.read(&places, true, &mut |place, _, bytes| {
        let index = names.partition_point(|(_, end)| *end <= place);
        if let Some(hasher) = hashers.get_mut(index) {
            hash_bytes(hasher, bytes);
        }
        Ok(())
    })?;
    Ok(names.into_iter().map(|(name, _)| name).zip(hashers.iter().map(blake3::Hasher::finalize)).collect())
}
