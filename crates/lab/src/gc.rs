//! Making room among the runs: checkpoints of finished runs beside the newest and the best, and what killed processes left.
//!
//! A checkpoint that something may still begin from stays: all of a run that is not done or whose sweep goes on, and those
//! that another run was forked from or goes on from.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rayon::prelude::*;

use super::remove::{FreedBytes, bytes_freed, discard, is_sweep_unfinished};
use runner_files::TEMPORARY;
use runner_store::catalog;
use runner_store::catalog::{ListedRun, ListedStatus};
use runner_store::checkpoint;
use runner_store::checkpoint::DAMAGED;
use runner_store::error::StoreError;
use runner_store::lock::{LOCK, RunLock, name_lock_is_free, remove_name_lock};
use runner_store::manifest::RunOrigin;
use runner_store::run_dir::{CHECKPOINTS, stale_folders};
use runner_store::time;

/// What kind of thing may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum UnneededKind {
    /// A checkpoint that is neither the newest nor the best of a run that is done.
    Checkpoint,
    /// One of a run that is done that was set aside because it could not be used.
    Damaged,
    /// What a killed process left.
    Leftover,
    /// The file of a turn that nobody has.
    Lock,
}

/// Something that may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnneededItem {
    pub kind: UnneededKind,
    /// The run that it is a part of.
    pub run: Option<PathBuf>,
    pub path: PathBuf,
    pub bytes: u64,
}

/// What in the folder of runs `root` may go; of checkpoints, only those of runs that ended longer ago than `older_than`. Changes
/// nothing.
///
/// # Errors
/// If the folder cannot be read.
pub fn survey(root: &Path, older_than: Option<Duration>) -> Result<Vec<UnneededItem>, StoreError> {
    let runs = catalog::list(root)?;
    let pinned = pinned(&runs);
    let goes_on: BTreeSet<&str> = runs.iter().filter_map(|r| r.sweep.as_ref()).map(|s| s.id.as_str()).collect();
    let goes_on: BTreeSet<&str> = goes_on.into_iter().filter(|id| is_sweep_unfinished(root, id)).collect();
    let kept = |run: &ListedRun| {
        run.sweep.as_ref().is_some_and(|s| goes_on.contains(s.id.as_str()))
            || older_than.is_some_and(|age| !ended_before(run, age))
    };
    let of_runs = runs.par_iter().flat_map_iter(|run| {
        if run.status == ListedStatus::Running || !RunLock::is_free(&run.path) {
            return Vec::new();
        }
        let none = BTreeSet::new();
        of_run(run, !kept(run), pinned.get(run.id.as_str()).unwrap_or(&none))
    });
    let mut out: Vec<UnneededItem> = of_runs.collect();
    let item = |kind, path: PathBuf| UnneededItem { kind, run: None, bytes: 0, path };
    out.extend(stale_folders(root).into_iter().map(|path| item(UnneededKind::Leftover, path)));
    let turns = children(root).into_iter().filter(|path| is_name_lock(path) && name_lock_is_free(path));
    out.extend(turns.map(|path| item(UnneededKind::Lock, path)));
    // In the order in which they go.
    let mut freed = FreedBytes::default();
    for item in &mut out {
        item.bytes = freed.add(&item.path);
    }
    Ok(out)
}

/// Removes what `survey` found; those that went, with the bytes that this freed. A run that someone works on by now keeps everything.
///
/// # Errors
/// If the file system refuses; what went before that is gone.
pub fn free(
    root: &Path,
    unneeded: &[UnneededItem],
    older_than: Option<Duration>,
) -> Result<Vec<UnneededItem>, StoreError> {
    let mut gone = Vec::new();
    let mut runs: Vec<&PathBuf> = unneeded.iter().filter_map(|item| item.run.as_ref()).collect();
    runs.dedup();
    let mut locks = Vec::new();
    for run in runs {
        match RunLock::take_to_remove(run) {
            Ok(lock) => locks.push((run, lock)),
            Err(StoreError::Locked { .. } | StoreError::Refused(_)) => {}
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // As many at a time as files may be open.
        if locks.len() == 256 {
            gone.extend(free_locked(root, unneeded, &mut locks, older_than)?);
        }
    }
    gone.extend(free_locked(root, unneeded, &mut locks, older_than)?);
    for item in unneeded.iter().filter(|item| item.run.is_none()) {
        let bytes = bytes_freed(&item.path);
        let went = match item.kind {
            UnneededKind::Lock => remove_name_lock(&item.path),
            _ => RunLock::is_free(&item.path) && fs::remove_dir_all(&item.path).is_ok(),
        };
        if went {
            gone.push(UnneededItem { bytes, ..item.clone() });
        }
    }
    Ok(gone)
}

/// Of the runs in `locks`, which this process holds; it lets go of them.
fn free_locked(
    root: &Path,
    unneeded: &[UnneededItem],
    locks: &mut Vec<(&PathBuf, RunLock)>,
    older_than: Option<Duration>,
) -> Result<Vec<UnneededItem>, StoreError> {
    // Looked at again now that nobody changes them: a fork may have come meanwhile, or a session come and gone.
    let runs = catalog::list(root)?;
    let pinned = pinned(&runs);
    let mut gone = Vec::new();
    for (path, _lock) in locks.drain(..) {
        let Some(run) = runs.iter().find(|run| run.path == *path) else { continue };
        let kept = run.sweep.as_ref().is_some_and(|s| is_sweep_unfinished(root, &s.id))
            || older_than.is_some_and(|age| !ended_before(run, age));
        let none = BTreeSet::new();
        let now = of_run(run, !kept, pinned.get(run.id.as_str()).unwrap_or(&none));
        // Its bytes may be others by now: those of a file with several names, of which one has gone.
        let still = |item: &UnneededItem| now.iter().any(|other| (other.kind, &other.path) == (item.kind, &item.path));
        for item in unneeded.iter().filter(|item| item.run.as_ref() == Some(path) && still(item)) {
            let bytes = bytes_freed(&item.path);
            if item.path.is_dir() {
                discard(&item.path)?;
            } else {
                fs::remove_file(&item.path).map_err(StoreError::io("removing", &item.path))?;
            }
            gone.push(UnneededItem { bytes, ..item.clone() });
        }
    }
    Ok(gone)
}

/// Steps of checkpoints that other runs were forked from or go on from, by the id of the run that has them.
fn pinned(runs: &[ListedRun]) -> BTreeMap<&str, BTreeSet<u64>> {
    let mut out: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for run in runs {
        if let Some(RunOrigin::Fork { id, step: Some(step), .. }) = &run.origin {
            out.entry(id).or_default().insert(*step);
        }
        if let Some(from) = &run.continued_from {
            out.entry(&from.id).or_default().insert(from.step);
        }
    }
    out
}

/// What may go of `run`, which nobody works on; of its checkpoints only if `prune`. Bytes are not counted.
fn of_run(run: &ListedRun, prune: bool, pinned: &BTreeSet<u64>) -> Vec<UnneededItem> {
    let mut out = Vec::new();
    // What lies elsewhere, and is only linked to, is not ours to remove.
    let real = |path: &Path| fs::symlink_metadata(path).is_ok_and(|m| m.is_dir());
    if run.status == ListedStatus::Broken || !real(&run.path) {
        return out;
    }
    let mut push = |kind, path: PathBuf| {
        out.push(UnneededItem { kind, run: Some(run.path.clone()), bytes: 0, path });
    };
    let unfinished = |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(TEMPORARY));
    for path in children(&run.path).into_iter().filter(unfinished) {
        push(UnneededKind::Leftover, path);
    }
    let folder = run.path.join(CHECKPOINTS);
    if !real(&folder) {
        return out;
    }
    let prune = prune && run.status == ListedStatus::Done;
    for path in children(&folder) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(TEMPORARY) {
            push(UnneededKind::Leftover, path);
        } else if prune && name.ends_with(DAMAGED) && real(&path) {
            push(UnneededKind::Damaged, path);
        }
    }
    if prune {
        let kept = checkpoint::steps_to_keep(&folder);
        for step in checkpoint::saved_steps(&folder).into_iter().filter(|s| !kept.contains(s) && !pinned.contains(s)) {
            let path = folder.join(checkpoint::dir_name(step));
            if real(&path) {
                push(UnneededKind::Checkpoint, path);
            }
        }
    }
    out
}

fn ended_before(run: &ListedRun, age: Duration) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let ended = run.ended.as_deref().or(run.started.as_deref()).and_then(time::parse);
    ended.is_some_and(|ended| now - ended > age.as_secs_f64())
}

fn is_name_lock(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let real = fs::symlink_metadata(path).is_ok_and(|m| m.is_file());
    real && name.starts_with('.') && path.extension() == Some(OsStr::new(LOCK))
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let mut out: Vec<_> = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).map(|e| e.path()).collect();
    out.sort();
    out
}

#[cfg(test)]
mod tests;
