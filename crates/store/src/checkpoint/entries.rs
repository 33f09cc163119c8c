//! Lists the checkpoints in a folder, and finds the one that is asked for, without changing anything.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::load;
use crate::error::StoreError;
use runner_files::TEMPORARY_PREFIX;

const PREFIX: &str = "step-";

/// A checkpoint by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointEntry {
    pub step: u64,
    pub path: PathBuf,
}

/// Which checkpoint of a run to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointChoice {
    Latest,
    /// The checkpoint with the lowest validation loss; the latest where none was measured.
    Best,
    Step(u64),
}

/// The checkpoints in `folder`, oldest first. A missing folder has none.
///
/// # Errors
/// If the folder cannot be read.
pub(super) fn read_entries(folder: &Path) -> Result<Vec<CheckpointEntry>, StoreError> {
    let read = match fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(StoreError::io("reading", folder))?,
    };
    let checkpoint = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let digits = name.to_str()?.strip_prefix(PREFIX)?;
        let step = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())??;
        Some(CheckpointEntry { step, path: entry.path() })
    };
    let mut out: Vec<CheckpointEntry> = read.into_iter().filter_map(checkpoint).collect();
    out.sort_by_key(|e| e.step);
    Ok(out)
}

/// The steps of the checkpoints in `folder`, oldest first. A missing folder has none.
///
/// # Errors
/// If the folder cannot be read.
pub fn saved_steps(folder: &Path) -> Result<Vec<u64>, StoreError> {
    Ok(read_entries(folder)?.iter().map(|e| e.step).collect())
}

/// The name of the checkpoint of `step`.
pub fn dir_name(step: u64) -> String {
    format!("{PREFIX}{step:08}")
}

/// The folder in `folder` into which the parts of the checkpoint of `step` are written before it is committed.
pub fn pending_folder(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("{TEMPORARY_PREFIX}{}", dir_name(step)))
}

/// The step of the checkpoint whose validation loss is lowest; the earlier one of two equal ones.
pub(super) fn best(entries: &[CheckpointEntry]) -> Option<u64> {
    let measured = entries.iter().filter_map(|e| {
        let loss = load::state_file(&e.path).ok()?.val_loss?.0;
        (!loss.is_nan()).then_some((e.step, loss))
    });
    measured.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(step, _)| step)
}

/// The steps of the checkpoints in `folder` that a completed run keeps: the newest, the newest that looks whole, the best.
///
/// # Errors
/// If the folder cannot be read.
pub fn steps_to_keep(folder: &Path) -> Result<Vec<u64>, StoreError> {
    let all = read_entries(folder)?;
    let whole = all.iter().rev().find(|e| load::looks_whole(&e.path).is_ok());
    Ok(all.last().into_iter().chain(whole).map(|e| e.step).chain(best(&all)).collect())
}

/// Describes the damage of the newest checkpoint in `folder`, and names the next good one. Checks that each file exists with its recorded
/// size; reads no content. `None` if nothing is missing, or if there is no checkpoint.
///
/// # Errors
/// If the folder cannot be read.
pub fn find_damage_of_newest(folder: &Path) -> Result<Option<StoreError>, StoreError> {
    let all = read_entries(folder)?;
    let damaged = all.last().and_then(|newest| Some((newest, load::looks_whole(&newest.path).err()?)));
    Ok(damaged.map(|(newest, problem)| unusable(folder, newest, problem)))
}

/// The name of the newest checkpoint in `folder` but that of `step` whose files are there in their sizes, for an error message.
fn other_good_checkpoint(folder: &Path, step: u64) -> Result<Option<String>, StoreError> {
    let all = read_entries(folder)?;
    let whole = all.iter().rev().find(|e| e.step != step && load::looks_whole(&e.path).is_ok());
    Ok(whole.map(|e| dir_name(e.step)))
}

/// Finds the checkpoint in `folder` that `which` asks for.
///
/// # Errors
/// `NoSuchCheckpoint`, with what there is.
pub(super) fn pick(folder: &Path, which: CheckpointChoice) -> Result<CheckpointEntry, StoreError> {
    let all = read_entries(folder)?;
    let step = match which {
        CheckpointChoice::Latest => None,
        CheckpointChoice::Best => best(&all),
        CheckpointChoice::Step(step) => Some(step),
    };
    let found = match step {
        Some(step) => all.iter().find(|e| e.step == step),
        None => all.last(),
    };
    found.cloned().ok_or_else(|| {
        let known: Vec<String> = all.iter().map(|e| e.step.to_string()).collect();
        let message = match (step, known.is_empty()) {
            (Some(step), false) => format!("no checkpoint of step {step}; there are: {}", known.join(", ")),
            _ => "there is no checkpoint: none was saved yet, or they were removed".to_owned(),
        };
        StoreError::NoSuchCheckpoint { path: folder.to_owned(), message }
    })
}

/// The error for `entry`, which cannot be used, with the next good one.
pub(super) fn unusable(folder: &Path, entry: &CheckpointEntry, bad: load::CheckpointProblem) -> StoreError {
    let fallback = || match other_good_checkpoint(folder, entry.step) {
        Ok(Some(other)) => format!("; the next good one is {other}"),
        Ok(None) => "; there is no other good checkpoint".to_owned(),
        Err(error) => format!("; the other checkpoints cannot be listed: {error}"),
    };
    bad.error(&entry.path, fallback)
}

/// The error for a save of `step` that `cause` kept from being done.
pub(super) fn save_failed(folder: &Path, step: u64, cause: StoreError) -> StoreError {
    // A checkpoint whose sync failed is in its place, but may not outlive a power failure.
    let last_good = match other_good_checkpoint(folder, step) {
        Ok(Some(other)) => format!("the last good checkpoint is {other}"),
        Ok(None) => "there is no earlier checkpoint".to_owned(),
        Err(error) => format!("earlier checkpoints cannot be listed: {error}"),
    };
    StoreError::Save { name: dir_name(step), cause: Box::new(cause), last_good }
}
