//! Removes runs: a run is first renamed and then deleted, so that after a kill at any moment it is whole or gone.

use std::fs;
use std::path::{Path, PathBuf};

use crate::progress::SweepProgress;
use crate::record::SweepRecord;
use crate::sweep_dir;
use runner_files::is_real_folder;
use runner_record::catalog::ListedRun;
use runner_record::files::{file_name, sync_dir};
use runner_record::manifest::{RunOrigin, RunStatus};
use runner_record::own_files::{foreign_path_in_checkpoints, foreign_path_in_run};
use runner_record::record_check::find_damage_of_metrics;
use runner_record::run_dir::{self, CHECKPOINTS, MANIFEST, REMOVING};
use runner_record::{RecordError, RunLock, checkpoint};
use runner_spec::format::quoted_line;

/// Checks that `path` is a run in the folder `root` and may be removed.
///
/// # Errors
/// `Refused`: it is in another folder, a symbolic link, no run, or contains something that the program did not write.
pub fn check(root: &Path, path: &Path) -> Result<(), RecordError> {
    check_is_run(root, path)?;
    refuse_foreign(path, foreign_path_in_run(path))
}

/// Checks that `path` is a run in the folder `root` whose checkpoints may be removed.
///
/// # Errors
/// Those of [`check`], but only the folder of checkpoints matters.
pub fn check_checkpoints(root: &Path, path: &Path) -> Result<(), RecordError> {
    check_is_run(root, path)?;
    refuse_foreign(path, foreign_path_in_checkpoints(path))
}

/// # Errors
/// `Refused` if the folder `path` contains `foreign`, which the program did not write.
pub(super) fn refuse_foreign(path: &Path, foreign: std::io::Result<Option<PathBuf>>) -> Result<(), RecordError> {
    foreign.map_err(RecordError::io("reading", path))?.map_or(Ok(()), |foreign| {
        let (path, foreign) = (path.display(), quoted_line(&foreign.to_string_lossy()));
        let why = format!("it contains `{foreign}`, which runner did not write; move that away first");
        Err(RecordError::Refused(format!("cannot remove {path}: {why}")))
    })
}

fn check_is_run(root: &Path, path: &Path) -> Result<(), RecordError> {
    let refuse = |why: String| Err(RecordError::Refused(format!("cannot remove {}: {why}", path.display())));
    fs::symlink_metadata(path).map_err(RecordError::io("reading", path))?;
    if !is_real_folder(path) {
        return refuse("it is a symbolic link, or a file; remove it yourself".to_owned());
    }
    let parent = |path: &Path| fs::canonicalize(path).ok().and_then(|p| p.parent().map(Path::to_owned));
    if parent(path) != fs::canonicalize(root).ok() {
        let own = path.parent().filter(|own| !own.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (root, own) = (root.display(), own.display());
        return refuse(format!("it is not in the folder of runs {root}; use `--runs {own}`"));
    }
    // A folder without its own manifest is not ours to remove.
    if !fs::symlink_metadata(path.join(MANIFEST)).is_ok_and(|m| m.is_file()) {
        return refuse(format!("it is not a run, because it does not have a {MANIFEST}"));
    }
    Ok(())
}

/// Removes the run directory `path` from `root`.
///
/// # Errors
/// Those of [`check`]; `Locked` if a process works on the run, `Refused` if that is unknown; if the file system refuses.
pub fn remove(root: &Path, path: &Path) -> Result<(), RecordError> {
    check(root, path)?;
    remove_locked(root, path)
}

/// Removes `path`, a folder in `parent` whose lock no other process holds.
pub(super) fn remove_locked(parent: &Path, path: &Path) -> Result<(), RecordError> {
    let _lock = RunLock::take_to_remove(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = parent.join(format!("{REMOVING}{name}-{}", std::process::id()));
    fs::rename(path, &aside).map_err(RecordError::io("renaming", path))?;
    sync_dir(parent)?;
    fs::remove_dir_all(&aside).map_err(RecordError::io("removing", &aside))
}

/// Removes the checkpoints of the run directory `path` and keeps its record.
///
/// # Errors
/// Those of [`remove`]; `Refused` for a run that is not done, which would start over, and its record with it, and for a run whose record is
/// damaged.
pub fn remove_checkpoints(root: &Path, path: &Path) -> Result<(), RecordError> {
    check_checkpoints(root, path)?;
    let _lock = RunLock::take_to_remove(path)?;
    let manifest = run_dir::read_manifest(path)?;
    if manifest.status != RunStatus::Done {
        let why = "is not done; without checkpoints it would start from scratch and lose its record";
        return Err(RecordError::Refused(format!("{} {why}", path.display())));
    }
    if let Some(damage) = find_damage_of_metrics(path, &manifest, run_dir::read_summary(path)?.as_ref())? {
        return Err(RecordError::Refused(format!(
            "cannot remove the checkpoints of {}: only its record would be left, which is damaged: {damage}",
            path.display()
        )));
    }
    let folder = path.join(CHECKPOINTS);
    checkpoint::saved_steps(&folder)?
        .iter()
        .try_for_each(|step| checkpoint::discard(&folder.join(checkpoint::dir_name(*step))))
}

/// The runs among `all` that were made from the run `id`, apart from those that compute the same steps themselves when they are repeated.
#[must_use]
pub fn descendants<'a>(all: &'a [ListedRun], id: &str) -> Vec<&'a ListedRun> {
    let from = |run: &ListedRun| match (&run.origin, &run.continued_from) {
        (Some(RunOrigin::Fork { id, .. } | RunOrigin::Reproduction { id, .. }), _) => Some(id.clone()),
        (None, from) => from.as_ref().filter(|from| !from.is_same_computation).map(|from| from.id.clone()),
    };
    all.iter().filter(|run| run.id != id && from(run).as_deref() == Some(id)).collect()
}

/// The runs that a sweep counts among its points.
#[derive(Debug)]
pub struct CountedRuns {
    /// The id of the sweep.
    pub sweep: String,
    pub is_finished: bool,
    /// The ids of the runs, with the numbers of their points.
    pub points: Vec<(String, usize)>,
}

impl CountedRuns {
    /// Reads the runs of the sweep of `record` from the folder of runs `root`.
    #[must_use]
    pub fn read(root: &Path, record: &SweepRecord) -> Self {
        let progress = SweepProgress::read(root, record);
        let is_finished = progress.is_finished(record);
        let runs = record.points.iter().zip(progress.points);
        let points = runs.filter_map(|(point, run)| Some((run?.id, point.index))).collect();
        Self { sweep: record.id.clone(), is_finished, points }
    }
}

/// The sweeps in `root` that may count `runs` among their points, each with the runs that it counts. A sweep whose record cannot be read
/// counts as not finished, and counts the runs whose manifests name it.
#[must_use]
pub fn sweeps_of_runs(root: &Path, runs: &[&ListedRun]) -> Vec<CountedRuns> {
    let of_sweep = |folder: PathBuf| {
        let mut counted = match sweep_dir::read_record(&folder) {
            // Reading the progress reads the metrics of all points, so sweeps of other experiments are skipped first.
            Ok(record) if record.points.iter().all(|p| runs.iter().all(|run| run.name.as_ref() != Some(&p.name))) => {
                return None;
            }
            Ok(record) => CountedRuns::read(root, &record),
            Err(_) => {
                let id = file_name(&folder);
                let named = runs.iter().filter_map(|run| Some((run.id.clone(), run.sweep.as_ref()?)));
                let points = named.filter(|(_, point)| point.id == id).map(|(run, point)| (run, point.point)).collect();
                CountedRuns { sweep: id, is_finished: false, points }
            }
        };
        counted.points.retain(|(id, _)| runs.iter().any(|run| run.id == *id));
        Some(counted).filter(|counted| !counted.points.is_empty())
    };
    sweep_dir::folders(root).into_iter().filter_map(of_sweep).collect()
}

/// True if the sweep `id` of the runs in `root` exists and is not finished, so that it needs its runs and their checkpoints. A sweep
/// whose record cannot be read counts as not finished.
#[must_use]
pub fn is_sweep_unfinished(root: &Path, id: &str) -> bool {
    let is_unfinished = |record| !SweepProgress::read(root, &record).is_finished(&record);
    sweep_dir::folder_of_id(root, id).is_some_and(|folder| sweep_dir::read_record(&folder).map_or(true, is_unfinished))
}
