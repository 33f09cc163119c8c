//! The folder of a run's checkpoints: saving, pruning, finding the newest good one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{Device, Tensor};

use super::hash::StateHash;
use super::load::{self, Bad};
use super::save::{self, Create};
use crate::exec::TrainState;
use crate::model::ParamLayout;
use crate::store::error::StoreError;
use crate::store::files::{TEMPORARY, remove_leftovers, sync_dir};

const PREFIX: &str = "step-";
/// Appended to the name of a checkpoint that cannot be used, which keeps it for a look and out of the way.
const DAMAGED: &str = ".damaged";

/// The checkpoints of a run. Whoever has this holds the run's lock.
#[derive(Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    plan_hash: String,
    keep: usize,
}

/// A checkpoint that is in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    pub path: PathBuf,
    pub hash: StateHash,
}

/// Where a run goes on from.
#[derive(Debug)]
pub struct Resumed {
    pub state: TrainState,
    pub hash: StateHash,
    pub path: PathBuf,
    /// What was wrong with newer checkpoints.
    pub warnings: Vec<String>,
}

/// A checkpoint by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub step: u64,
    pub path: PathBuf,
}

/// Which checkpoint of a run to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    Latest,
    /// The lowest validation loss among those that are kept; the latest where none was measured.
    Best,
    Step(u64),
}

/// The checkpoints in `folder`, oldest first. A folder that is not there has none.
fn entries(folder: &Path) -> Vec<Entry> {
    let Ok(read) = fs::read_dir(folder) else { return Vec::new() };
    let mut out: Vec<Entry> = read
        .filter_map(Result::ok)
        .filter_map(|e| {
            let name = e.file_name();
            let digits = name.to_str()?.strip_prefix(PREFIX)?;
            let step = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())??;
            Some(Entry { step, path: e.path() })
        })
        .collect();
    out.sort_by_key(|e| e.step);
    out
}

/// The steps of the checkpoints in `folder`, oldest first.
#[must_use]
pub fn steps(folder: &Path) -> Vec<u64> {
    entries(folder).iter().map(|e| e.step).collect()
}

fn dir_name(step: u64) -> String {
    format!("{PREFIX}{step:08}")
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

    /// Saves `state`, then prunes. `val_loss` is that of these weights, where it was measured.
    ///
    /// # Errors
    /// `Save`, with what is left to resume from: earlier checkpoints are not touched before the new one is in place.
    pub fn save(&self, state: &TrainState, val_loss: Option<f64>) -> Result<Saved, StoreError> {
        self.save_with(state, val_loss, &|path| File::create_new(path))
    }

    fn save_with(&self, state: &TrainState, val_loss: Option<f64>, create: Create<'_>) -> Result<Saved, StoreError> {
        let name = dir_name(state.step);
        let temporary = self.folder.join(format!("{TEMPORARY}{name}"));
        let path = self.folder.join(&name);
        let put = || -> Result<StateHash, StoreError> {
            fs::create_dir(&temporary).map_err(StoreError::io("creating", &temporary))?;
            let hash = save::write(&temporary, state, &self.plan_hash, val_loss, create)?;
            if path.exists() {
                // The same step again, after its first checkpoint turned out to be damaged or was passed over.
                self.discard(&path)?;
            }
            fs::rename(&temporary, &path).map_err(StoreError::io("renaming into place", &path))?;
            sync_dir(&self.folder)?;
            Ok(hash)
        };
        let hash = put().map_err(|cause| {
            let _ = fs::remove_dir_all(&temporary);
            let last_good = match self.newest_whole(u64::MAX) {
                Some(entry) => format!("the last good checkpoint is {}", dir_name(entry.step)),
                None => "there is no earlier checkpoint".to_owned(),
            };
            StoreError::Save { name, cause: Box::new(cause), last_good }
        })?;
        self.prune();
        Ok(Saved { path, hash })
    }

    /// The newest checkpoint that is complete and of this run; `None` if there are none at all. Damaged ones on the way
    /// are renamed out of the way and reported.
    ///
    /// # Errors
    /// If there are checkpoints but none can be used, or the machine refuses to read or hold one.
    pub fn latest(
        &self,
        layout: &Arc<ParamLayout>,
        moments: usize,
        device: &Device,
    ) -> Result<Option<Resumed>, StoreError> {
        let mut bad: Vec<(Entry, String)> = Vec::new();
        for entry in entries(&self.folder).into_iter().rev() {
            let message = match load::state(&entry.path, layout, moments, &self.plan_hash, device) {
                Ok((state, hash)) if state.step == entry.step => {
                    let set_aside = bad.iter().map(|(entry, message)| self.set_aside(entry, message, state.step));
                    let warnings = set_aside.collect::<Result<_, _>>()?;
                    return Ok(Some(Resumed { state, hash, path: entry.path, warnings }));
                }
                Ok((state, _)) => format!("its state is that of step {}", state.step),
                Err(Bad::Content(message)) => message,
                Err(Bad::Machine(error)) => return Err(error),
            };
            bad.push((entry, message));
        }
        let Some((newest, message)) = bad.first() else { return Ok(None) };
        let others = bad[1..].iter().map(|(entry, message)| format!("; {}: {message}", dir_name(entry.step)));
        let fallback =
            others.chain(["; there is no other good checkpoint: start over with --new".to_owned()]).collect();
        Err(StoreError::Checkpoint { path: newest.path.clone(), message: message.clone(), fallback })
    }

    /// Renames a bad checkpoint out of the way of the good one of step `good`. Returns what there is to say of it.
    fn set_aside(&self, entry: &Entry, message: &str, good: u64) -> Result<String, StoreError> {
        let name = dir_name(entry.step);
        let aside = self.folder.join(format!("{name}{DAMAGED}"));
        if aside.exists() {
            self.discard(&aside)?;
        }
        fs::rename(&entry.path, &aside).map_err(StoreError::io("renaming", &entry.path))?;
        Ok(format!("checkpoint {name}: {message}; set aside as {name}{DAMAGED}, falling back to {}", dir_name(good)))
    }

    /// The newest checkpoint before step `before` whose files are there in their sizes.
    fn newest_whole(&self, before: u64) -> Option<Entry> {
        entries(&self.folder).into_iter().rev().find(|e| e.step < before && load::looks_whole(&e.path).is_ok())
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

/// The step of the checkpoint whose validation loss is lowest; the earlier one of two equal ones.
fn best(entries: &[Entry]) -> Option<u64> {
    let measured = entries.iter().filter_map(|e| {
        let loss = load::state_file(&e.path).ok()?.val_loss?.0;
        (!loss.is_nan()).then_some((e.step, loss))
    });
    measured.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(step, _)| step)
}

/// The weights of a checkpoint in `folder`, flat [layout.total], and the steps they were trained for. For reading beside
/// a run that may be going on: nothing is changed.
///
/// # Errors
/// If there is no such checkpoint, or it cannot be used; then the error names the next good one.
pub fn load_weights(
    folder: &Path,
    which: Which,
    layout: &ParamLayout,
    device: &Device,
) -> Result<(Tensor, u64), StoreError> {
    let all = entries(folder);
    let step = match which {
        Which::Latest => None,
        Which::Best => best(&all),
        Which::Step(step) => Some(step),
    };
    let found = match step {
        Some(step) => all.iter().find(|e| e.step == step),
        None => all.last(),
    };
    let Some(entry) = found else {
        let known: Vec<String> = all.iter().map(|e| e.step.to_string()).collect();
        let message = match (step, known.is_empty()) {
            (Some(step), false) => format!("no checkpoint of step {step}; there are: {}", known.join(", ")),
            _ => "no checkpoint yet".to_owned(),
        };
        return Err(StoreError::NoSuchCheckpoint { path: folder.to_owned(), message });
    };
    load::weights(&entry.path, layout, device).map_err(|bad| match bad {
        Bad::Machine(error) => error,
        Bad::Content(message) => {
            let other = all.iter().rev().find(|e| e.step != entry.step && load::looks_whole(&e.path).is_ok());
            let fallback = other.map_or_else(
                || "; there is no other good checkpoint".to_owned(),
                |e| format!("; the next good one is {}", dir_name(e.step)),
            );
            StoreError::Checkpoint { path: entry.path.clone(), message, fallback }
        }
    })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
