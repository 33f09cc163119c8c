//! Lists the checkpoints in a folder, and finds the requested one, without changing anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::format::StateFile;
use super::load::{self, CheckpointProblem};
use super::names::{KEPT, OLD, dir_name, is_own_checkpoint, is_unfinished, step_of_folder};
use crate::error::RecordError;
use crate::files::file_name;
use runner_files::{TEMPORARY_PREFIX, if_present};

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
    /// The checkpoint with the lowest validation loss; the latest where none was measured. If a state file cannot be read, there is none:
    /// its checkpoint may be the best.
    Best,
    Step(u64),
}

/// The checkpoints in `folder`, oldest first. A missing folder has none.
///
/// # Errors
/// If the folder cannot be read.
pub(super) fn read_entries(folder: &Path) -> Result<Vec<CheckpointEntry>, RecordError> {
    let read = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = if_present(read).map_err(RecordError::io("reading", folder))?.unwrap_or_default();
    let checkpoint = |entry: fs::DirEntry| {
        let step = step_of_folder(entry.file_name().to_str()?)?;
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
pub fn saved_steps(folder: &Path) -> Result<Vec<u64>, RecordError> {
    Ok(read_entries(folder)?.iter().map(|e| e.step).collect())
}

/// The step of the newest checkpoint in `folder`. `None` if there is none, or the folder cannot be read.
pub fn newest_step(folder: &Path) -> Option<u64> {
    saved_steps(folder).ok()?.pop()
}

/// The unfinished files and checkpoints in `folder`, which a killed process left behind. A folder with something else in it is not one of
/// them.
pub fn leftovers(folder: &Path) -> Vec<PathBuf> {
    let is_own = |path: &PathBuf| !path.is_dir() || is_own_checkpoint(path);
    runner_files::leftovers(folder, is_unfinished).into_iter().filter(is_own).collect()
}

/// Removes the [`leftovers`] in `folder`. One that cannot be removed stays: it does no harm.
pub(super) fn remove_leftovers(folder: &Path) {
    runner_files::remove_all(&leftovers(folder));
}

/// Removes the folder `path` of a checkpoint, after a rename, so that a partly removed one is never taken for a checkpoint. One with files
/// that the program did not write is only renamed. The caller holds the lock of the run.
///
/// # Errors
/// If the file system refuses.
pub fn discard(path: &Path) -> Result<(), RecordError> {
    let name = file_name(path);
    let rename = |to: &Path| fs::rename(path, to).map_err(RecordError::io("renaming", path));
    if !is_own_checkpoint(path) {
        let mut kept = (1..=u32::MAX).map(|n| path.with_file_name(format!("{name}{KEPT}{n}")));
        return kept.find(|path| path.symlink_metadata().is_err()).map_or(Ok(()), |free| rename(&free));
    }
    let name = name.strip_prefix(TEMPORARY_PREFIX).unwrap_or(&name);
    let aside = path.with_file_name(format!("{TEMPORARY_PREFIX}{OLD}{name}"));
    let remove = || fs::remove_dir_all(&aside).map_err(RecordError::io("removing", &aside));
    if is_own_checkpoint(&aside) {
        remove()?;
    }
    rename(&aside)?;
    remove()
}

/// Checkpoints by their validation losses.
pub(super) struct RankedCheckpoints<'a> {
    /// Those that have a loss, in ascending order; the earlier of two equal ones first.
    pub(super) measured: Vec<&'a CheckpointEntry>,
    /// Those whose state file cannot be read.
    unreadable: Vec<(&'a CheckpointEntry, CheckpointProblem)>,
}

/// Ranks `entries`, which are in the order of their steps.
pub(super) fn rank(entries: &[CheckpointEntry]) -> RankedCheckpoints<'_> {
    let (mut measured, mut unreadable) = (Vec::new(), Vec::new());
    for entry in entries {
        match load::state_file(&entry.path) {
            Ok(state) => {
                measured.extend(state.val_loss.map(|loss| (entry, loss)));
            }
            Err(problem) => unreadable.push((entry, problem)),
        }
    }
    measured.sort_by(|a, b| a.1.total_cmp(&b.1));
    RankedCheckpoints { measured: measured.into_iter().map(|(entry, _)| entry).collect(), unreadable }
}

/// The steps of the checkpoints among `all` that stay: the newest `keep` good ones, and the good one with the lowest validation loss. `is_good`
/// reads every byte of a checkpoint. Damaged ones that rank above these stay too, and so do those whose state file cannot
/// be read. So the last good one always stays.
pub(super) fn retained_steps(
    all: &[CheckpointEntry],
    keep: usize,
    is_good: &mut dyn FnMut(&CheckpointEntry) -> bool,
) -> BTreeSet<u64> {
    let ranked = rank(all);
    let newest = all.iter().rev();
    let mut kept: BTreeSet<u64> =
        newest.clone().take(keep).chain(ranked.measured.first().copied()).map(|e| e.step).collect();
    kept.extend(ranked.unreadable.iter().map(|(entry, _)| entry.step));
    if kept.len() == all.len() {
        // Nothing would be removed, so nothing need be read.
        return kept;
    }
    let mut keep_good = |candidates: &mut dyn Iterator<Item = &CheckpointEntry>, count: usize| {
        let mut good = 0;
        while good < count
            && let Some(entry) = candidates.next()
        {
            kept.insert(entry.step);
            good += usize::from(is_good(entry));
        }
    };
    keep_good(&mut newest.clone(), keep);
    keep_good(&mut ranked.measured.iter().copied(), 1);
    kept
}

/// The checkpoints that a completed run has and keeps.
#[derive(Debug, Default)]
pub struct KeptCheckpoints {
    /// The steps of all checkpoints, oldest first.
    pub all: Vec<u64>,
    pub steps: BTreeSet<u64>,
    /// The damage of those among them that were read and cannot be used.
    pub damaged: Vec<RecordError>,
}

/// Chooses the checkpoints in `folder` that a completed run keeps: the newest and the best whose every byte is good, and damaged ones that are
/// newer or better. Reads checkpoints only if others can be removed.
///
/// # Errors
/// If the folder cannot be read.
pub fn checkpoints_to_keep(folder: &Path) -> Result<KeptCheckpoints, RecordError> {
    let all = read_entries(folder)?;
    let (mut checked, mut damaged) = (BTreeMap::new(), Vec::new());
    let steps = retained_steps(&all, 1, &mut |entry| {
        *checked.entry(entry.step).or_insert_with(|| {
            let problem = verify(entry, None).err();
            let is_good = problem.is_none();
            damaged.extend(problem.map(|problem| unusable(folder, entry, problem)));
            is_good
        })
    });
    Ok(KeptCheckpoints { all: all.iter().map(|entry| entry.step).collect(), steps, damaged })
}

/// Reads and checks every byte of the checkpoint `entry`, of the plan `plan_hash` where that is given.
pub(super) fn verify(entry: &CheckpointEntry, plan_hash: Option<&str>) -> Result<StateFile, CheckpointProblem> {
    let state = load::verify(&entry.path, plan_hash)?;
    if state.step == entry.step {
        return Ok(state);
    }
    Err(CheckpointProblem::Content(format!("its state is from step {}", state.step)))
}

/// Reads every byte of the newest checkpoint in `folder`, describes its damage, and names the next good one. `None` if it is good,
/// or if there is no checkpoint.
///
/// # Errors
/// If the folder or a file cannot be read.
pub fn find_damage_of_newest(folder: &Path) -> Result<Option<RecordError>, RecordError> {
    let Some(newest) = read_entries(folder)?.pop() else { return Ok(None) };
    match verify(&newest, None) {
        Ok(_) => Ok(None),
        Err(CheckpointProblem::Machine(error)) => Err(error),
        Err(problem) => Ok(Some(unusable(folder, &newest, problem))),
    }
}

/// The name of the newest good checkpoint in `folder` but that of `step`, for an error message. Reads every byte of it.
fn other_good_checkpoint(folder: &Path, step: u64) -> Result<Option<String>, RecordError> {
    let all = read_entries(folder)?;
    let good = all.iter().rev().find(|e| e.step != step && verify(e, None).is_ok());
    Ok(good.map(|e| dir_name(e.step)))
}

/// Finds the checkpoint in `folder` that `which` asks for.
///
/// # Errors
/// `Refused`, with what there is, if there is no such checkpoint; `Checkpoint` if the best is unknown, because a state file cannot be read.
pub(super) fn pick(folder: &Path, which: CheckpointChoice) -> Result<CheckpointEntry, RecordError> {
    let all = read_entries(folder)?;
    let step = match which {
        CheckpointChoice::Latest => None,
        CheckpointChoice::Best => {
            let RankedCheckpoints { measured, unreadable } = rank(&all);
            if let Some((entry, problem)) = unreadable.into_iter().next() {
                let steps: Vec<String> = all.iter().map(|e| e.step.to_string()).collect();
                let steps = steps.join(", ");
                return Err(problem.error(&entry.path, || {
                    format!(", so the checkpoint with the lowest validation loss is unknown; name a step: {steps}")
                }));
            }
            measured.first().map(|entry| entry.step)
        }
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
        RecordError::Refused(format!("{}: {message}", folder.display()))
    })
}

/// The error for `entry`, which cannot be used, with the next good one.
pub(super) fn unusable(folder: &Path, entry: &CheckpointEntry, bad: CheckpointProblem) -> RecordError {
    let fallback = || match other_good_checkpoint(folder, entry.step) {
        Ok(Some(other)) => format!("; the next good one is {other}"),
        Ok(None) => "; there is no other good checkpoint".to_owned(),
        Err(error) => format!("; the other checkpoints cannot be listed: {error}"),
    };
    bad.error(&entry.path, fallback)
}

/// The error for a save of `step` that `cause` kept from being done.
pub fn save_failed(folder: &Path, step: u64, cause: RecordError) -> RecordError {
    // A checkpoint whose sync failed is in its place, but may not outlive a power failure.
    let last_good = match other_good_checkpoint(folder, step) {
        Ok(Some(other)) => format!("the last good checkpoint is {other}"),
        Ok(None) => "there is no earlier checkpoint".to_owned(),
        Err(error) => format!("earlier checkpoints cannot be listed: {error}"),
    };
    RecordError::Save { name: dir_name(step), cause: Box::new(cause), last_good }
}
