//! The folder of checkpoints of a run: saves them, removes old ones, and finds the newest usable one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::entries::{
    CheckpointChoice, CheckpointEntry, discard, pick, rank, read_entries, remove_leftovers, retained_steps,
    save_failed, unusable, verify,
};
use super::format::{FORMAT, FORMAT_PARTS, STATE, StateFile, check_parts};
use super::hash::whole_hash;
use super::load::{self, CheckpointProblem};
use super::names::{DAMAGED, dir_name, is_own_checkpoint, pending_folder};
use super::part::{PartRecord, StateHash};
#[cfg(any(test, feature = "testing"))]
use super::state_reader::StateReader;
#[cfg(any(test, feature = "testing"))]
use super::write_part::write_part;
use crate::error::RecordError;
use crate::files::{link_or_copy, sealed_json, sync_dir};
use runner_files::create_owned_dir;
use runner_spec::event::BestValidation;
use runner_spec::program::{DataPosition, RowSequence};

/// The checkpoints of a run whose lock this process holds.
#[derive(Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    plan_hash: String,
    keep: usize,
    /// The steps whose checkpoints this process has written, or has read whole: true if they are good.
    checked: Mutex<BTreeMap<u64, bool>>,
    /// The rows that each step reads, from which the position in the data follows; `None`: it is not recorded.
    rows: Option<RowSequence>,
    /// Creates the files of a checkpoint. Tests put a full disk here.
    create: fn(&Path) -> io::Result<File>,
}

/// A checkpoint that is in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedCheckpoint {
    pub path: PathBuf,
    pub hash: StateHash,
}

/// The newest usable checkpoint, from which a run resumes.
#[derive(Debug, Clone)]
pub struct ChosenCheckpoint {
    pub step: u64,
    pub path: PathBuf,
    pub hash: StateHash,
    /// Problems of newer checkpoints.
    pub warnings: Vec<String>,
}

impl Checkpoints {
    /// Opens the checkpoint folder of a run, creates it if needed, and removes what a killed process left unfinished. The newest
    /// `keep` checkpoints stay, at least one.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn open(folder: &Path, plan_hash: &str, keep: usize) -> Result<Self, RecordError> {
        create_owned_dir(folder).map_err(RecordError::io("creating", folder))?;
        remove_leftovers(folder);
        let (folder, plan_hash, keep) = (folder.to_owned(), plan_hash.to_owned(), keep.max(1));
        Ok(Self {
            folder,
            plan_hash,
            keep,
            checked: Mutex::default(),
            rows: None,
            create: |path| File::create_new(path),
        })
    }

    /// The same checkpoints, which also record the position in the training data, whose rows the steps read in the order of `rows`.
    #[must_use]
    pub fn with_rows(self, rows: Option<RowSequence>) -> Self {
        Self { rows, ..self }
    }

    /// The same checkpoints, whose files `create` makes.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn with_create(self, create: fn(&Path) -> io::Result<File>) -> Self {
        Self { create, ..self }
    }

    fn position_after(&self, step: u64) -> Option<DataPosition> {
        self.rows.as_ref().map(|rows| rows.position_after(step))
    }

    /// Saves `state` as a checkpoint in one part, then removes old checkpoints. `val_loss` is that of these weights, where it was measured.
    ///
    /// # Errors
    /// `Save`, with the checkpoint to resume from: earlier checkpoints are not touched before the new one is in place.
    #[cfg(any(test, feature = "testing"))]
    pub fn save(&self, state: &StateReader<'_>, val_loss: Option<f64>) -> Result<SavedCheckpoint, RecordError> {
        let folder = self.begin(state.step)?;
        let all: Vec<usize> = (0..state.layout.entries.len()).collect();
        let part = write_part(&folder, super::PartSpec::WHOLE, state, &all, &self.create)
            .inspect_err(|_| self.abandon(state.step))?;
        self.commit(state.step, state.tokens, state.best, val_loss, vec![part])
    }

    /// Creates the empty folder for the parts of the checkpoint of `step`, before any of them is written.
    ///
    /// # Errors
    /// `Save`, with the checkpoint that is left to resume from.
    pub fn begin(&self, step: u64) -> Result<PathBuf, RecordError> {
        self.abandon(step);
        let folder = pending_folder(&self.folder, step);
        match fs::create_dir(&folder) {
            Ok(()) => Ok(folder),
            Err(error) => Err(save_failed(&self.folder, step, RecordError::io("creating", &folder)(error))),
        }
    }

    /// Removes the parts of a checkpoint that will not be committed. What cannot be removed is removed as a leftover later.
    pub fn abandon(&self, step: u64) {
        let _ = discard(&pending_folder(&self.folder, step));
    }

    /// Removes all unfinished checkpoints.
    pub fn abandon_all(&self) {
        remove_leftovers(&self.folder);
    }

    /// Makes a checkpoint of the parts that were written to the folder of `step`: `state.json`, last, then the folder is
    /// renamed into place and old checkpoints are removed. `parts` are as their ranks reported them, in any order; `val_loss`
    /// is that of these weights, where it was measured. The hash is that of the state if there is one part, else
    /// `whole_hash` of the parts.
    ///
    /// # Errors
    /// `Save`, with the checkpoint to resume from, also if a part is missing, of another step or not in its size. Earlier
    /// checkpoints are not touched before the new one is in place; the parts are removed.
    pub fn commit(
        &self,
        step: u64,
        tokens: u64,
        best: Option<BestValidation>,
        val_loss: Option<f64>,
        mut parts: Vec<PartRecord>,
    ) -> Result<SavedCheckpoint, RecordError> {
        let temporary = pending_folder(&self.folder, step);
        parts.sort_by_key(|p| p.part.index);
        let put = || -> Result<SavedCheckpoint, RecordError> {
            check_parts(&parts, step).map_err(|message| RecordError::damaged(&temporary, message))?;
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
                position: self.position_after(step),
                // JSON has no other numbers.
                best: best.filter(|best| best.val_loss.is_finite()),
                val_loss: val_loss.filter(|loss| loss.is_finite()),
                plan_hash: self.plan_hash.clone(),
                moments: parts.first().map_or(0, |p| p.moments),
                state_hash: hash.state.clone(),
                weights_hash: hash.weights.clone(),
                files: BTreeMap::new(),
                parts,
            };
            if let [only] = file.parts.as_mut_slice() {
                file.files = std::mem::take(&mut only.files);
                file.parts.clear();
            }
            write_state(&temporary, &file, self.create)?;
            Ok(SavedCheckpoint { path: self.install(step)?, hash })
        };
        let saved = put().map_err(|cause| {
            self.abandon(step);
            save_failed(&self.folder, step, cause)
        })?;
        self.checked().insert(step, true);
        self.remove_old_checkpoints();
        Ok(saved)
    }

    /// Renames the pending folder of `step` into place, and makes that durable. An earlier checkpoint of the step is removed.
    fn install(&self, step: u64) -> Result<PathBuf, RecordError> {
        let path = self.folder.join(dir_name(step));
        if path.exists() {
            discard(&path)?;
        }
        fs::rename(pending_folder(&self.folder, step), &path).map_err(RecordError::io("renaming into place", &path))?;
        sync_dir(&self.folder)?;
        Ok(path)
    }

    /// Finds the newest checkpoint that is complete and of the plan of this run; `None` if there are no checkpoints. It checks every
    /// byte without keeping any; each rank then reads what it needs with [`super::stream_state`]. Damaged newer checkpoints are renamed and
    /// reported.
    ///
    /// # Errors
    /// If there are checkpoints but none can be used, or the machine refuses to read one.
    pub fn choose(&self) -> Result<Option<ChosenCheckpoint>, RecordError> {
        let mut bad: Vec<(CheckpointEntry, String)> = Vec::new();
        for entry in read_entries(&self.folder)?.into_iter().rev() {
            let message = match verify(&entry, Some(&self.plan_hash)) {
                Ok(file) => {
                    self.checked().insert(entry.step, true);
                    let (step, path, hash) = (file.step, entry.path, file.hash());
                    let set_aside = bad.iter().map(|(entry, message)| self.set_aside(entry, message, step));
                    let warnings = set_aside.collect::<Result<_, _>>()?;
                    return Ok(Some(ChosenCheckpoint { step, path, hash, warnings }));
                }
                Err(CheckpointProblem::Content(message)) => message,
                Err(CheckpointProblem::Machine(error)) => return Err(error),
            };
            bad.push((entry, message));
        }
        let Some((newest, message)) = bad.first() else { return Ok(None) };
        let others = bad[1..].iter().map(|(entry, message)| format!("; {}: {message}", dir_name(entry.step)));
        let fallback = others
            .chain(
                ["; there is no other good checkpoint; start from scratch with `runner apply FILE --new`".to_owned()],
            )
            .collect();
        Err(RecordError::Checkpoint { path: newest.path.clone(), message: message.clone(), fallback })
    }

    /// Reads the checkpoints that will stay when the next one is saved, so that training does not wait for that.
    pub fn check_retained(&self) {
        // The save reads the folder again, and reports the error.
        let Ok(all) = read_entries(&self.folder) else { return };
        for entry in all.iter().rev().take(self.keep.saturating_sub(1)).chain(rank(&all).measured.first().copied()) {
            self.is_good(entry);
        }
    }

    /// Adds a checkpoint of the folder `from` to this one, as a checkpoint of this run's plan with the same bytes, by hard links where
    /// the file system has them. Returns its step and hash, and changes nothing in `from`. `same_validation` is true if validation
    /// losses of both runs are over the same rows; if not, those of the other run do not count here.
    ///
    /// # Errors
    /// If there is no such checkpoint, or it cannot be used; then the error names the next good one.
    pub fn adopt(
        &self,
        from: &Path,
        which: CheckpointChoice,
        same_validation: bool,
    ) -> Result<(u64, StateHash), RecordError> {
        let source = pick(from, which)?;
        let temporary = self.begin(source.step)?;
        let put = || -> Result<(u64, StateHash), CheckpointProblem> {
            let mut file = load::state_file(&source.path)?;
            for part in file.checked_parts().map_err(|error| CheckpointProblem::Content(error.text))? {
                // Sizes first: nothing is copied of a checkpoint that cannot be whole.
                load::check_sizes(&source.path, &part)?;
                for name in part.files.keys() {
                    link_or_copy(&source.path.join(name), &temporary.join(name)).map_err(CheckpointProblem::Machine)?;
                }
            }
            file.plan_hash.clone_from(&self.plan_hash);
            file.position = self.position_after(file.step);
            if !same_validation {
                (file.best, file.val_loss) = (None, None);
            }
            write_state(&temporary, &file, self.create).map_err(CheckpointProblem::Machine)?;
            // The copied files are checked, because the other run may remove its own meanwhile.
            let file = load::verify(&temporary, None)?;
            if file.step != source.step {
                return Err(CheckpointProblem::Content(format!("its state is from step {}", file.step)));
            }
            Ok((file.step, file.hash()))
        };
        let adopted = put().map_err(|bad| unusable(from, &source, bad));
        let installed = adopted.and_then(|adopted| self.install(source.step).map(|_| adopted));
        installed.inspect_err(|_| self.abandon(source.step))
    }

    /// Renames the unusable checkpoint `entry`, so that the usable one of step `good` is the newest. Returns the warning about it.
    fn set_aside(&self, entry: &CheckpointEntry, message: &str, good: u64) -> Result<String, RecordError> {
        let name = dir_name(entry.step);
        let aside = self.folder.join(format!("{name}{DAMAGED}"));
        if aside.exists() {
            discard(&aside)?;
        }
        fs::rename(&entry.path, &aside).map_err(RecordError::io("renaming", &entry.path))?;
        Ok(format!("checkpoint {name}: {message}; set aside as {name}{DAMAGED}, falling back to {}", dir_name(good)))
    }

    /// Removes all checkpoints but the newest `keep` good ones and the best good one. What cannot be read or removed stays, and so does what
    /// the program did not write: it does no harm.
    fn remove_old_checkpoints(&self) {
        let all = read_entries(&self.folder).unwrap_or_default();
        let retained = retained_steps(&all, self.keep, &mut |entry| self.is_good(entry));
        let old = all.iter().filter(|entry| !retained.contains(&entry.step) && is_own_checkpoint(&entry.path));
        for entry in old {
            let _ = discard(&entry.path);
        }
    }

    /// True if every byte of the checkpoint `entry` is good. It is read once, unless this process wrote it.
    fn is_good(&self, entry: &CheckpointEntry) -> bool {
        *self.checked().entry(entry.step).or_insert_with(|| verify(entry, Some(&self.plan_hash)).is_ok())
    }

    fn checked(&self) -> MutexGuard<'_, BTreeMap<u64, bool>> {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes `state.json`, which completes a checkpoint, and makes the folder durable.
fn write_state(folder: &Path, file: &StateFile, create: impl Fn(&Path) -> io::Result<File>) -> Result<(), RecordError> {
    let path = folder.join(STATE);
    let bytes = sealed_json(&path, file)?;
    let put = || -> io::Result<()> {
        let mut out = create(&path)?;
        out.write_all(&bytes)?;
        out.sync_all()
    };
    put().map_err(RecordError::io("writing", &path))?;
    sync_dir(folder)
}
