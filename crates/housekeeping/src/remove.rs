//! Removes runs: a run is first renamed and then deleted, so that after a kill at any moment it is whole or gone.

use std::fs;
use std::path::{Path, PathBuf};

use runner_files::is_real_folder;
use runner_record::catalog::ListedRun;
use runner_record::files::sync_dir;
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
pub(crate) fn refuse_foreign(path: &Path, foreign: std::io::Result<Option<PathBuf>>) -> Result<(), RecordError> {
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
pub(crate) fn remove_locked(parent: &Path, path: &Path) -> Result<(), RecordError> {
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
