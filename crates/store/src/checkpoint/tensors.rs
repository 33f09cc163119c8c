//! Reads what a checkpoint records about itself, and compares two checkpoints tensor by tensor.

use std::collections::BTreeMap;
use std::path::Path;

use super::entries::{self, CheckpointChoice, dir_name};
use super::hash::{StateHash, hash_bytes};
use super::load::{self, CheckpointProblem, StoredCheckpoint};
use crate::error::StoreError;
use runner_spec::event::BestValidation;
use runner_spec::program::DataPosition;

/// The step of the checkpoint in `folder` that `which` asks for.
///
/// # Errors
/// `NoSuchCheckpoint`, with what there is.
pub fn chosen_step(folder: &Path, which: CheckpointChoice) -> Result<u64, StoreError> {
    entries::pick(folder, which).map(|entry| entry.step)
}

/// The recorded hash of the checkpoint of `step` in `folder`; `None` if there is none, or its state file cannot be read.
pub fn recorded_hash(folder: &Path, step: u64) -> Option<StateHash> {
    load::state_file(&folder.join(dir_name(step))).ok().map(|file| file.hash())
}

/// The position of a run at a checkpoint, as its state file has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SavedPosition {
    pub step: u64,
    /// Valid tokens seen.
    pub tokens: u64,
    /// The position in the training data; `None` in checkpoints of older versions.
    pub data: Option<DataPosition>,
    /// The lowest validation loss of the run so far.
    pub best: Option<BestValidation>,
    /// The validation loss of these weights, where it was measured.
    pub val_loss: Option<f64>,
}

/// The recorded position of the checkpoint of `step` in `folder`; `None` if there is none, or its state file cannot be read.
pub fn recorded_position(folder: &Path, step: u64) -> Option<SavedPosition> {
    let file = load::state_file(&folder.join(dir_name(step))).ok()?;
    let best = file.best.map(Into::into);
    Some(SavedPosition {
        step,
        tokens: file.tokens,
        data: file.position,
        best,
        val_loss: file.val_loss.map(|loss| loss.0),
    })
}

/// The name of the first tensor, weights before moments, that differs between the checkpoints of `step` in the folders `a` and `b`;
/// `None` if they are equal. Names of moments end in `.m` and `.v`.
///
/// # Errors
/// If one of them is missing, damaged or cannot be read.
pub fn first_difference(a: &Path, b: &Path, step: u64) -> Result<Option<String>, StoreError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoints;
    use runner_compute::testing::{random_state, values, with_buffer};

    #[test]
    fn the_first_tensor_that_differs_is_named() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let save = |dir: &tempfile::TempDir, state: &runner_compute::state::TrainState| {
            Checkpoints::open(dir.path(), "abc", 9).unwrap().save(state, None).unwrap();
        };
        let state = random_state(3, 2);
        save(&dirs[0], &state);
        let difference = || first_difference(dirs[0].path(), dirs[1].path(), 3);
        assert!(difference().is_err(), "there is no second one");
        save(&dirs[1], &state);
        assert_eq!(difference().unwrap(), None);
        assert_eq!(recorded_hash(dirs[0].path(), 3), recorded_hash(dirs[1].path(), 3));
        assert_eq!(
            (recorded_hash(dirs[0].path(), 4), chosen_step(dirs[0].path(), CheckpointChoice::Latest).unwrap()),
            (None, 3)
        );
        for (index, suffix) in [(5, ""), (state.layout.total + 5, ".m"), (2 * state.layout.total + 5, ".v")] {
            let mut changed: Vec<f32> = values(&state).into_iter().map(f32::from_bits).collect();
            changed[index] += 1.0;
            std::fs::remove_dir_all(dirs[1].path()).unwrap();
            save(&dirs[1], &with_buffer(&state, changed));
            let name = format!("{}{suffix}", state.layout.entries[0].spec.name);
            assert_eq!(difference().unwrap(), Some(name));
        }
    }
}
