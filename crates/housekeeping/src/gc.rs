//! Frees space among the runs: checkpoints of finished runs apart from the newest and the best, and what killed processes left behind. A
//! checkpoint counts as the newest or the best only after every byte of it was read and is good.
//!
//! A checkpoint that something may still start from stays: all checkpoints of a run that is not done or whose sweep is not finished,
//! those from which another run was forked or continued, and the one that a run itself started from, from which it is reproduced when the
//! other run is gone. While the other run has it, the two are one file, and keeping both takes no space.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rayon::prelude::*;

use runner_files::{FreedBytes, bytes_freed, children, is_real_folder};
use runner_record::catalog::{self, ListedRun, ListedStatus};
use runner_record::checkpoint::{self, DAMAGED, KeptCheckpoints, is_checkpoint_folder, is_own_checkpoint};
use runner_record::files::file_name;
use runner_record::lock::{is_name_lock, name_lock_is_free, remove_name_lock};
use runner_record::manifest::RunOrigin;
use runner_record::run_dir::{self, CHECKPOINTS, stale_folders};
use runner_record::{RecordError, RunLock, time};
use runner_sweep::needed_runs::is_sweep_unfinished;

runner_record::named_enum! {
    /// The kind of an item that can be removed.
    pub enum UnneededKind {
        /// A checkpoint of a run that is done, neither the newest nor the best.
        Checkpoint = "checkpoint",
        /// A damaged checkpoint of a run that is done, which was set aside.
        Damaged = "damaged",
        /// Something that a killed process left behind.
        Leftover = "leftover",
        /// The file of a lock that no process holds.
        Lock = "lock",
    }
}

/// Something that can be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnneededItem {
    pub kind: UnneededKind,
    /// The run directory that the item is in.
    pub run: Option<PathBuf>,
    pub path: PathBuf,
    pub bytes: u64,
}

/// What can be removed in a folder of runs.
#[derive(Debug, Default)]
pub struct RunsSurvey {
    pub unneeded: Vec<UnneededItem>,
    /// The damage of checkpoints that stay, each in one sentence.
    pub problems: Vec<String>,
    /// The checkpoints that stay, which were read, by run directory.
    kept: BTreeMap<PathBuf, KeptCheckpoints>,
}

/// The runs of a folder, and what keeps their checkpoints.
struct Retention<'a> {
    runs: &'a [ListedRun],
    /// Checkpoints of runs that ended less than this long ago stay.
    older_than: Option<Duration>,
    unfinished_sweeps: BTreeSet<&'a str>,
    /// Steps of checkpoints that other runs started from, by the id of the run that has them.
    used_steps: BTreeMap<&'a str, BTreeSet<u64>>,
}

impl<'a> Retention<'a> {
    fn new(root: &Path, runs: &'a [ListedRun], older_than: Option<Duration>) -> Self {
        let mut sweeps: BTreeSet<&str> = runs.iter().filter_map(|r| r.sweep.as_ref()).map(|s| s.id.as_str()).collect();
        sweeps.retain(|id| is_sweep_unfinished(root, id));
        let mut used_steps: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
        for run in runs {
            if let Some(RunOrigin::Fork { id, step: Some(step), .. }) = &run.origin {
                used_steps.entry(id).or_default().insert(*step);
            }
            if let Some(from) = run.continued_from.as_ref().filter(|from| !from.is_same_computation) {
                used_steps.entry(&from.id).or_default().insert(from.step);
            }
        }
        Self { runs, older_than, unfinished_sweeps: sweeps, used_steps }
    }

    /// True if checkpoints of `run` may be removed. A link points to something that is not ours to remove.
    fn allows_pruning(&self, run: &ListedRun) -> bool {
        run.status == ListedStatus::Done
            && is_real_folder(&run.path)
            && is_real_folder(&run.path.join(CHECKPOINTS))
            && !run.sweep.as_ref().is_some_and(|sweep| self.unfinished_sweeps.contains(sweep.id.as_str()))
            && self.older_than.is_none_or(|age| ended_before(run, age))
    }

    /// The items that can be removed from `run`, on which no process works and whose checkpoints in `kept` stay. Nothing is unneeded among
    /// checkpoints if `kept` is `None`. The bytes of the items are not counted yet.
    fn removable_items(&self, run: &ListedRun, kept: Option<&KeptCheckpoints>) -> Vec<UnneededItem> {
        let mut items = Vec::new();
        if run.status == ListedStatus::Broken || !is_real_folder(&run.path) {
            return items;
        }
        let mut push = |kind, path: PathBuf| {
            items.push(UnneededItem { kind, run: Some(run.path.clone()), bytes: 0, path });
        };
        for path in runner_files::leftovers(&run.path, |_| false) {
            push(UnneededKind::Leftover, path);
        }
        let folder = run.path.join(CHECKPOINTS);
        if !is_real_folder(&folder) {
            return items;
        }
        for path in checkpoint::leftovers(&folder) {
            push(UnneededKind::Leftover, path);
        }
        let Some(kept) = kept.filter(|_| self.allows_pruning(run)) else { return items };
        let is_damaged = |path: &PathBuf| {
            let name = file_name(path);
            name.ends_with(DAMAGED) && is_checkpoint_folder(&name)
        };
        // What the program did not write stays.
        for path in children(&folder).into_iter().filter(|path| is_damaged(path) && is_own_checkpoint(path)) {
            push(UnneededKind::Damaged, path);
        }
        let beginning = run.continued_from.as_ref().filter(|from| !from.is_same_computation).map(|from| from.step);
        let used = self.used_steps.get(run.id.as_str());
        let is_used = |step: &u64| beginning == Some(*step) || used.is_some_and(|steps| steps.contains(step));
        for step in kept.all.iter().filter(|step| !kept.steps.contains(step) && !is_used(step)) {
            let path = folder.join(checkpoint::dir_name(*step));
            if is_own_checkpoint(&path) {
                push(UnneededKind::Checkpoint, path);
            }
        }
        items
    }
}

/// Finds what can be removed in the folder of runs `root`. Of the checkpoints, only those of runs that ended longer ago than `older_than`
/// are included. Changes nothing.
///
/// # Errors
/// If the folder cannot be read.
pub fn survey(root: &Path, older_than: Option<Duration>) -> Result<RunsSurvey, RecordError> {
    let runs = catalog::list(root)?;
    let retention = Retention::new(root, &runs, older_than);
    let idle = runs.par_iter().filter(|run| run.status != ListedStatus::Running && RunLock::is_free(&run.path));
    let surveyed = idle.map(|run| {
        let may_prune = retention.allows_pruning(run);
        // Nothing is unneeded in a folder that cannot be read.
        let kept = may_prune.then(|| checkpoint::checkpoints_to_keep(&run.path.join(CHECKPOINTS)).ok()).flatten();
        (retention.removable_items(run, kept.as_ref()), kept.map(|kept| (run.path.clone(), kept)))
    });
    let (items, kept): (Vec<_>, Vec<_>) = surveyed.unzip();
    let (mut items, kept) = (items.concat(), kept.into_iter().flatten().collect::<BTreeMap<_, _>>());
    let damaged = kept.values().flat_map(|kept| &kept.damaged);
    let problems = damaged.map(|damage| format!("{damage}; the damaged one stays too")).collect();
    let item = |kind, path: PathBuf| UnneededItem { kind, run: None, bytes: 0, path };
    items.extend(stale_folders(root).into_iter().map(|path| item(UnneededKind::Leftover, path)));
    let locks = children(root).into_iter().filter(|path| is_name_lock(path) && name_lock_is_free(path));
    items.extend(locks.map(|path| item(UnneededKind::Lock, path)));
    // Items are counted in the order in which they are removed.
    let mut freed = FreedBytes::default();
    for item in &mut items {
        item.bytes = freed.add(&item.path);
    }
    Ok(RunsSurvey { unneeded: items, problems, kept })
}

/// The keys of the cached data that the runs in `root` use. The empty key stands for a run whose data is unknown; then more is kept.
///
/// # Errors
/// If the folder cannot be read.
pub fn used_data_keys(root: &Path) -> Result<BTreeSet<String>, RecordError> {
    let key = |run: &ListedRun| {
        run_dir::read_manifest(&run.path)
            .map_or_else(|_| String::new(), |manifest| runner_data::gc::data_key(|part| manifest.data.of(part)))
    };
    Ok(catalog::list(root)?.iter().map(key).collect())
}

/// Removes the items of `survey`, and returns those that were removed with the bytes that this freed. A run on which a process works
/// meanwhile keeps everything.
///
/// # Errors
/// If the file system refuses. Items that were removed before stay removed.
pub fn free(root: &Path, survey: &RunsSurvey, older_than: Option<Duration>) -> Result<Vec<UnneededItem>, RecordError> {
    let unneeded = &survey.unneeded;
    let mut gone = Vec::new();
    let mut runs: Vec<&PathBuf> = unneeded.iter().filter_map(|item| item.run.as_ref()).collect();
    runs.dedup();
    // The number of open files is limited.
    for runs in runs.chunks(256) {
        let mut locks = Vec::new();
        for run in runs {
            match RunLock::take_to_remove(run) {
                Ok(lock) => locks.push((*run, lock)),
                Err(RecordError::Locked { .. } | RecordError::Refused(_)) => {}
                Err(RecordError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        gone.extend(free_locked(root, survey, locks, older_than)?);
    }
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

/// Removes items of the runs in `locks`, which this process holds, and releases the locks.
fn free_locked(
    root: &Path,
    survey: &RunsSurvey,
    locks: Vec<(&PathBuf, RunLock)>,
    older_than: Option<Duration>,
) -> Result<Vec<UnneededItem>, RecordError> {
    // The runs are read again now that no process changes them: since the survey one may have been forked or resumed.
    let runs = catalog::list(root)?;
    let retention = Retention::new(root, &runs, older_than);
    let mut gone = Vec::new();
    for (path, _lock) in locks {
        let Some(run) = retention.runs.iter().find(|run| run.path == *path) else { continue };
        // Checkpoints that were read stay read while no others are saved or removed.
        let has_all = |kept: &&KeptCheckpoints| {
            checkpoint::saved_steps(&path.join(CHECKPOINTS)).is_ok_and(|saved| saved == kept.all)
        };
        let now = retention.removable_items(run, survey.kept.get(path).filter(has_all));
        // The bytes may differ from the survey: those of a file with several names that has lost one of them.
        let is_still_unneeded =
            |item: &UnneededItem| now.iter().any(|other| (other.kind, &other.path) == (item.kind, &item.path));
        for item in survey.unneeded.iter().filter(|item| item.run.as_ref() == Some(path) && is_still_unneeded(item)) {
            let bytes = bytes_freed(&item.path);
            if item.kind == UnneededKind::Leftover && item.path.is_dir() {
                fs::remove_dir_all(&item.path).map_err(RecordError::io("removing", &item.path))?;
            } else if item.path.is_dir() {
                checkpoint::discard(&item.path)?;
            } else {
                fs::remove_file(&item.path).map_err(RecordError::io("removing", &item.path))?;
            }
            gone.push(UnneededItem { bytes, ..item.clone() });
        }
    }
    Ok(gone)
}

fn ended_before(run: &ListedRun, age: Duration) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let ended = run.ended.as_deref().or(run.started.as_deref()).and_then(time::parse);
    ended.is_some_and(|ended| now - ended > age.as_secs_f64())
}

#[cfg(test)]
mod tests;
