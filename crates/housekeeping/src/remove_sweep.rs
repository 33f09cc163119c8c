//! Removes sweeps, and the runs of a sweep that nothing else needs.

use std::fs;
use std::path::Path;

use super::remove::{self, descendants, refuse_foreign, remove_locked};
use runner_record::catalog::{self, ListedRun, ListedStatus, SWEEPS};
use runner_record::error::RecordError;
use runner_record::files::file_name;
use runner_record::own_files::foreign_path_in_sweep;
use runner_sweep::needed_runs::CountedRuns;
use runner_sweep::sweep_dir;

/// The runs of a sweep that is to be removed.
#[derive(Debug, Default)]
pub struct SweepRuns {
    /// The runs that nothing else needs.
    pub removable: Vec<ListedRun>,
    /// The other runs, each with the reason why it stays.
    pub kept: Vec<(ListedRun, String)>,
}

/// Checks that `path` is a sweep in the folder of runs `root` and may be removed.
///
/// # Errors
/// `Refused`: it is in another folder, a symbolic link, or contains something that the program did not write.
pub fn check(root: &Path, path: &Path) -> Result<(), RecordError> {
    let real = fs::symlink_metadata(path).map_err(RecordError::io("reading", path))?;
    let parent = fs::canonicalize(path).ok().and_then(|path| path.parent().map(Path::to_owned));
    if !real.is_dir() || parent.is_none() || parent != fs::canonicalize(root.join(SWEEPS)).ok() {
        let (path, sweeps) = (path.display(), root.join(SWEEPS));
        let message = format!(
            "cannot remove {path}: it is not a folder in {}; use `--runs DIR` to name a different folder of \
                runs",
            sweeps.display()
        );
        return Err(RecordError::Refused(message));
    }
    refuse_foreign(path, foreign_path_in_sweep(path))
}

/// Divides the runs that the sweep in `path` started: a run stays if it has a tag, a process is working on it, another sweep counts it among
/// its points, or a run that stays was made from it.
///
/// # Errors
/// If the runs, or the record of another sweep, cannot be read.
pub fn runs_of_sweep(root: &Path, path: &Path) -> Result<SweepRuns, RecordError> {
    let id = file_name(path);
    let all = catalog::list(root)?;
    let mut needed: Vec<(String, String)> = Vec::new();
    for other in sweep_dir::folders(root).iter().filter(|other| file_name(other) != id) {
        let counted = CountedRuns::read(root, &sweep_dir::read_record(other)?);
        let reason = format!("it is a point of the sweep {}", counted.sweep);
        needed.extend(counted.points.into_iter().map(|(run, _)| (run, reason.clone())));
    }
    let mut runs = SweepRuns::default();
    for run in all.iter().filter(|run| run.sweep.as_ref().is_some_and(|sweep| sweep.id == id)) {
        let reason = match needed.iter().find(|(needed, _)| *needed == run.id) {
            _ if run.status == ListedStatus::Running => Some("a process is working on it".to_owned()),
            _ if !run.tags.is_empty() => Some(format!("it has the tag {}", run.tags.join(", "))),
            Some((_, reason)) => Some(reason.clone()),
            // Such as files that the program did not write.
            None => remove::check(root, &run.path).err().map(|error| error.to_string()),
        };
        match reason {
            Some(reason) => runs.kept.push((run.clone(), reason)),
            None => runs.removable.push(run.clone()),
        }
    }
    // A run that stays keeps those that it was made from.
    loop {
        let goes = |id: &str| runs.removable.iter().any(|run| run.id == id);
        let needed = |run: &ListedRun| descendants(&all, &run.id).into_iter().find(|other| !goes(&other.id));
        let found = runs.removable.iter().enumerate().find_map(|(i, run)| Some((i, needed(run)?.id.clone())));
        let Some((i, other)) = found else { return Ok(runs) };
        let run = runs.removable.remove(i);
        runs.kept.push((run, format!("{other} was made from it")));
    }
}

/// Removes the folder `path` of a sweep in the folder of runs `root`. Runs stay.
///
/// # Errors
/// Those of [`check`]; `Locked` if a process runs the sweep; if the file system refuses.
pub fn remove_sweep(root: &Path, path: &Path) -> Result<(), RecordError> {
    check(root, path)?;
    remove_locked(&root.join(SWEEPS), path)
}
