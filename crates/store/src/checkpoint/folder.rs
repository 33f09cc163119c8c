//! The folder of a run's checkpoints: saving, pruning, finding the newest good one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::entries::{
    CheckpointChoice, CheckpointEntry, best, dir_name, entries, pending, pick, save_failed, unusable,
};
use super::format::{AnyFloat, FORMAT, FORMAT_PARTS, STATE, StateFile, check_parts};
use super::hash::{StateHash, whole_hash};
use super::load::{self, CheckpointProblem};
use super::part::{self, Create, PartRecord, PartSpec};
use crate::error::StoreError;
use crate::files::{link_or_copy, sync_dir};
use runner_compute::state::TrainState;
use runner_files::{TEMPORARY, remove_leftovers};
use runner_spec::event::Best;
use runner_spec::model::layout::ParamLayout;

/// Appended to the name of a checkpoint that cannot be used, which keeps it for a look and out of the way.
pub const DAMAGED: &str = ".damaged";

/// The checkpoints of a run. Whoever has this holds the run's lock.
#[derive(Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    plan_hash: String,
    keep: usize,
}

/// A checkpoint that is in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedCheckpoint {
    pub path: PathBuf,
    pub hash: StateHash,
}

/// Where a run goes on from.
#[derive(Debug)]
pub struct ResumedState {
    pub state: TrainState,
    pub hash: StateHash,
    pub path: PathBuf,
    /// What was wrong with newer checkpoints.
    pub warnings: Vec<String>,
}

/// The checkpoint that all ranks of a run go on from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChosenCheckpoint {
    pub step: u64,
    pub tokens: u64,
    pub path: PathBuf,
    pub hash: StateHash,
    /// What was wrong with newer checkpoints.
    pub warnings: Vec<String>,
}

/// What the newest usable checkpoint gave.
struct NewestUsable<T> {
    entry: CheckpointEntry,
    value: T,
    warnings: Vec<String>,
}

impl Checkpoints {
    /// Opens the checkpoint folder of a run, creating it, and removes what a killed process left unfinished. `keep` is how
    /// many of the newest stay; at least one does.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn open(folder: &Path, plan_hash: &str, keep: usize) -> Result<Self, StoreError> {
        fs::create_dir_all(folder).map_err(StoreError::io("creating", folder))?;
        remove_leftovers(folder);
        Ok(Self { folder: folder.to_owned(), plan_hash: plan_hash.to_owned(), keep: keep.max(1) })
    }

    /// Saves `state` as a checkpoint in one part, then prunes. `val_loss` is that of these weights, where it was measured.
    ///
    /// # Errors
    /// `Save`, with what is left to resume from: earlier checkpoints are not touched before the new one is in place.
    pub fn save(&self, state: &TrainState, val_loss: Option<f64>) -> Result<SavedCheckpoint, StoreError> {
        self.save_with(state, val_loss, &|path| File::create_new(path))
    }

    pub(super) fn save_with(
        &self,
        state: &TrainState,
        val_loss: Option<f64>,
        create: Create<'_>,
    ) -> Result<SavedCheckpoint, StoreError> {
        let folder = self.begin(state.step)?;
        let owned: Vec<usize> = (0..state.layout.entries.len()).collect();
        let only = PartSpec { index: 0, count: 1 };
        let part = part::write_with(&folder, only, state, &owned, create).inspect_err(|_| self.abandon(state.step))?;
        self.commit_with(state.step, state.tokens, state.best, val_loss, vec![part], create)
    }

    /// An empty folder for the parts of the checkpoint of `step`, to be called before any of them is written.
    ///
    /// # Errors
    /// `Save`, as `commit`.
    pub fn begin(&self, step: u64) -> Result<PathBuf, StoreError> {
        self.abandon(step);
        let folder = pending(&self.folder, step);
        match fs::create_dir(&folder) {
            Ok(()) => Ok(folder),
            Err(error) => Err(save_failed(&self.folder, step, StoreError::io("creating", &folder)(error))),
        }
    }

    /// Removes the parts of a checkpoint that will not be committed.
    pub fn abandon(&self, step: u64) {
        let _ = fs::remove_dir_all(pending(&self.folder, step));
    }

    /// Removes everything unfinished.
    pub fn abandon_all(&self) {
        remove_leftovers(&self.folder);
    }

    /// Makes a checkpoint of the parts that were written to the folder of `step`: `state.json`, last, then the folder is
    /// renamed into place and old checkpoints are pruned. `parts` are as their ranks reported them, in any order; `val_loss`
    /// is that of these weights, where it was measured. The hash is that of the state if there is one part, else
    /// `whole_hash` of the parts.
    ///
    /// # Errors
    /// `Save`, with what is left to resume from, also if a part is missing, of another step or not in its size. Earlier
    /// checkpoints are not touched before the new one is in place; the parts are removed.
    pub fn commit(
        &self,
        step: u64,
        tokens: u64,
        best: Option<Best>,
        val_loss: Option<f64>,
        parts: Vec<PartRecord>,
    ) -> Result<SavedCheckpoint, StoreError> {
        self.commit_with(step, tokens, best, val_loss, parts, &|path| File::create_new(path))
    }

    pub(super) fn commit_with(
        &self,
        step: u64,
        tokens: u64,
        best: Option<Best>,
        val_loss: Option<f64>,
        mut parts: Vec<PartRecord>,
        create: Create<'_>,
    ) -> Result<SavedCheckpoint, StoreError> {
        let temporary = pending(&self.folder, step);
        let path = self.folder.join(dir_name(step));
        parts.sort_by_key(|p| p.part.index);
        let put = || -> Result<StateHash, StoreError> {
            check_parts(&parts, step).map_err(|message| StoreError::damaged(&temporary, message))?;
            for part in &parts {
                load::check_sizes(&temporary, part).map_err(|bad| bad.error(&temporary, String::new))?;
            }
            let (hash, format) = match parts.as_slice() {
                [only] => (only.hash.clone(), FORMAT),
                several => (whole_hash(step, tokens, several.iter().map(|p| &p.hash)), FORMAT_PARTS),
            };
            let mut file = StateFile {
                format,
                step,
                tokens,
                best: best.map(Into::into),
                val_loss: val_loss.map(AnyFloat),
                plan_hash: self.plan_hash.clone(),
                moments: parts.first().map_or(0, |p| p.moments),
                state_hash: hash.state.clone(),
                weights_hash: hash.weights.clone(),
                files: std::collections::BTreeMap::new(),
                parts,
            };
            if let [only] = file.parts.as_mut_slice() {
                file.files = std::mem::take(&mut only.files);
                file.parts.clear();
            }
            write_state(&temporary, &file, create)?;
            if path.exists() {
                // The same step again, after its first checkpoint turned out to be damaged or was passed over.
                self.discard(&path)?;
            }
            fs::rename(&temporary, &path).map_err(StoreError::io("renaming into place", &path))?;
            sync_dir(&self.folder)?;
            Ok(hash)
        };
        let hash = put().map_err(|cause| {
            self.abandon(step);
            save_failed(&self.folder, step, cause)
        })?;
        self.prune();
        Ok(SavedCheckpoint { path, hash })
    }

    /// The newest checkpoint that is complete and of this run; `None` if there are none at all. Damaged ones on the way
    /// are renamed out of the way and reported. For a run in one process: `choose` and `load` in one pass over the files.
    ///
    /// # Errors
    /// If there are checkpoints but none can be used, or the machine refuses to read or hold one.
    pub fn latest(
        &self,
        layout: &Arc<ParamLayout>,
        moments: usize,
        device: &Device,
    ) -> Result<Option<ResumedState>, StoreError> {
        let newest = self.newest(|path| {
            let (state, hash) = load::state(path, Some(&self.plan_hash), layout, moments, true, device)?;
            Ok((state.step, (state, hash)))
        })?;
        Ok(newest.map(|NewestUsable { entry, value: (state, hash), warnings }| ResumedState {
            state,
            hash,
            path: entry.path,
            warnings,
        }))
    }

    /// As `latest`, but reads and checks every byte without keeping any: for the one process that chooses, after which
    /// each rank takes what it needs with `load`.
    ///
    /// # Errors
    /// As `latest`.
    pub fn choose(&self) -> Result<Option<ChosenCheckpoint>, StoreError> {
        let newest = self.newest(|path| {
            let file = load::verify(path, Some(&self.plan_hash))?;
            Ok((file.step, file))
        })?;
        Ok(newest.map(|NewestUsable { entry, value, warnings }| {
            let hash = value.hash();
            ChosenCheckpoint { step: value.step, tokens: value.tokens, path: entry.path, hash, warnings }
        }))
    }

    /// The newest checkpoint that `attempt` can use; it returns the step that it found inside, too.
    fn newest<T>(
        &self,
        attempt: impl Fn(&Path) -> Result<(u64, T), CheckpointProblem>,
    ) -> Result<Option<NewestUsable<T>>, StoreError> {
        let mut bad: Vec<(CheckpointEntry, String)> = Vec::new();
        for entry in entries(&self.folder).into_iter().rev() {
            let message = match attempt(&entry.path) {
                Ok((step, value)) if step == entry.step => {
                    let set_aside = bad.iter().map(|(entry, message)| self.set_aside(entry, message, step));
                    let warnings = set_aside.collect::<Result<_, _>>()?;
                    return Ok(Some(NewestUsable { entry, value, warnings }));
                }
                Ok((step, _)) => format!("its state is that of step {step}"),
                Err(CheckpointProblem::Content(message)) => message,
                Err(CheckpointProblem::Machine(error)) => return Err(error),
            };
            bad.push((entry, message));
        }
        let Some((newest, message)) = bad.first() else { return Ok(None) };
        let others = bad[1..].iter().map(|(entry, message)| format!("; {}: {message}", dir_name(entry.step)));
        let fallback =
            others.chain(["; there is no other good checkpoint: start over with --new".to_owned()]).collect();
        Err(StoreError::Checkpoint { path: newest.path.clone(), message: message.clone(), fallback })
    }

    /// Puts a checkpoint of the folder `from` in place here, as one of this run's plan, with the same bytes; where the file
    /// system can, without copying them. Returns its step and hash. Nothing is changed in `from`. `measured`: whether validation
    /// losses there are of the same evaluation; if not, none of them counts as the best here.
    ///
    /// # Errors
    /// If there is no such checkpoint, or it cannot be used; then the error names the next good one.
    pub fn adopt(&self, from: &Path, which: CheckpointChoice, measured: bool) -> Result<(u64, StateHash), StoreError> {
        let source = pick(from, which)?;
        let temporary = self.begin(source.step)?;
        let put = || -> Result<(u64, StateHash), CheckpointProblem> {
            let mut file = load::state_file(&source.path)?;
            for part in file.checked_parts().map_err(CheckpointProblem::Content)? {
                // Sizes first: nothing is copied of a checkpoint that cannot be whole.
                load::check_sizes(&source.path, &part)?;
                for name in part.files.keys() {
                    link_or_copy(&source.path.join(name), &temporary.join(name)).map_err(CheckpointProblem::Machine)?;
                }
            }
            file.plan_hash.clone_from(&self.plan_hash);
            if !measured {
                (file.best, file.val_loss) = (None, None);
            }
            write_state(&temporary, &file, &|path| File::create_new(path)).map_err(CheckpointProblem::Machine)?;
            // What is checked is what was taken: the other run may go on and prune meanwhile.
            let file = load::verify(&temporary, None)?;
            if file.step != source.step {
                return Err(CheckpointProblem::Content(format!("its state is that of step {}", file.step)));
            }
            Ok((file.step, file.hash()))
        };
        let adopted = put().map_err(|bad| unusable(from, &source, bad)).and_then(|adopted| {
            let path = self.folder.join(dir_name(source.step));
            fs::rename(&temporary, &path).map_err(StoreError::io("renaming into place", &path))?;
            sync_dir(&self.folder)?;
            Ok(adopted)
        });
        adopted.inspect_err(|_| self.abandon(source.step))
    }

    /// Renames a bad checkpoint out of the way of the good one of step `good`. Returns what there is to say of it.
    fn set_aside(&self, entry: &CheckpointEntry, message: &str, good: u64) -> Result<String, StoreError> {
        let name = dir_name(entry.step);
        let aside = self.folder.join(format!("{name}{DAMAGED}"));
        if aside.exists() {
            self.discard(&aside)?;
        }
        fs::rename(&entry.path, &aside).map_err(StoreError::io("renaming", &entry.path))?;
        Ok(format!("checkpoint {name}: {message}; set aside as {name}{DAMAGED}, falling back to {}", dir_name(good)))
    }

    /// Removes all but the newest `keep` and the best. What cannot be removed stays: it does no harm.
    fn prune(&self) {
        let all = entries(&self.folder);
        let best = best(&all);
        let old = all.len().saturating_sub(self.keep);
        for entry in all[..old].iter().filter(|e| Some(e.step) != best) {
            let _ = self.discard(&entry.path);
        }
    }

    /// Removes a folder so that no half of it can be taken for a checkpoint.
    fn discard(&self, path: &Path) -> Result<(), StoreError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = self.folder.join(format!("{TEMPORARY}old-{name}"));
        fs::rename(path, &temporary).map_err(StoreError::io("renaming", path))?;
        fs::remove_dir_all(&temporary).map_err(StoreError::io("removing", &temporary))
    }
}

/// Writes `state.json`, which says that a checkpoint is complete, and makes the folder durable.
fn write_state(folder: &Path, file: &StateFile, create: Create<'_>) -> Result<(), StoreError> {
    let path = folder.join(STATE);
    let mut bytes = serde_json::to_vec_pretty(file).map_err(|e| StoreError::damaged(&path, e.to_string()))?;
    bytes.push(b'\n');
    let put = || -> io::Result<()> {
        let mut out = create(&path)?;
        out.write_all(&bytes)?;
        out.sync_all()
    };
    put().map_err(StoreError::io("writing", &path))?;
    sync_dir(folder)
}

/// A state of `layout` from the checkpoint at `path`, whatever layout wrote it: each tensor is found by name, and every byte
/// that is used is checked. With 0 `moments` the weights alone are read, else there must be as many as in the checkpoint.
/// With a `plan_hash` the checkpoint must be of that plan. Reads only, so that all ranks may load at the same time.
///
/// # Errors
/// If the checkpoint cannot be used, lacks a tensor or has it in another shape, or the machine refuses.
pub fn load(
    path: &Path,
    plan_hash: Option<&str>,
    layout: &Arc<ParamLayout>,
    moments: usize,
    device: &Device,
) -> Result<TrainState, StoreError> {
    let state = load::state(path, plan_hash, layout, moments, false, device);
    state.map(|(state, _)| state).map_err(|bad| bad.error(path, String::new))
}

/// The weights of a checkpoint in `folder`, flat [layout.total], and the steps they were trained for. For reading beside
/// a run that may be going on: nothing is changed.
///
/// # Errors
/// If there is no such checkpoint, or it cannot be used; then the error names the next good one.
pub fn load_weights(
    folder: &Path,
    which: CheckpointChoice,
    layout: &ParamLayout,
    device: &Device,
) -> Result<(Tensor, u64), StoreError> {
    let entry = pick(folder, which)?;
    load::weights(&entry.path, layout, device).map_err(|bad| unusable(folder, &entry, bad))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

#[cfg(test)]
#[path = "tests_parts.rs"]
mod tests_parts;
