//! Which sweep is meant: by name, or by the file that it was made of.

use std::path::{Path, PathBuf};

use crate::cli::exit::RequestError;
use runner_lab::sweep::SweepSpec;
use runner_lab::sweep::frozen::SweepRecord;
use runner_lab::sweep_dir;
use runner_lab::sweep_dir::RECORD;

/// The sweep that `wanted` means in the folder of runs `root`: a folder, an id, the unique beginning of one; the newest
/// if nothing is given.
///
/// # Errors
/// If there is none, or there are several.
pub(in crate::cli) fn resolve(root: &Path, wanted: Option<&str>) -> anyhow::Result<PathBuf> {
    let Some(wanted) = wanted else {
        let newest = sweep_dir::list(root).sweeps.pop();
        return newest.map(|(path, _)| path).ok_or_else(|| none(root).into());
    };
    let as_path = Path::new(wanted);
    if as_path.join(RECORD).is_file() {
        return Ok(as_path.to_owned());
    }
    let id = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let all = sweep_dir::folders(root);
    if let Some(exact) = all.iter().find(|path| id(path) == wanted) {
        return Ok(exact.clone());
    }
    let matching: Vec<&PathBuf> =
        all.iter().filter(|path| !wanted.is_empty() && id(path).starts_with(wanted)).collect();
    let ids = |paths: &[&PathBuf]| paths.iter().map(|path| id(path)).collect::<Vec<_>>().join(", ");
    match matching.as_slice() {
        [one] => Ok((*one).clone()),
        [] if all.is_empty() => Err(none(root).into()),
        [] => {
            let there = ids(&all.iter().collect::<Vec<_>>());
            Err(RequestError(format!("no sweep {wanted:?} in {}; there are: {there}", root.display())).into())
        }
        many => {
            Err(RequestError(format!("{wanted} may be any of these sweeps: {}; give more of the name", ids(many)))
                .into())
        }
    }
}

fn none(root: &Path) -> RequestError {
    RequestError(format!("no sweeps in {} yet: runner sweep FILE starts one", root.display()))
}

/// The newest sweep of this very file in `root`.
pub(super) fn of_file(root: &Path, spec: &SweepSpec) -> Option<(PathBuf, SweepRecord)> {
    let file = absolute(&spec.path);
    let mut sweeps = sweep_dir::list(root).sweeps;
    sweeps.retain(|(_, frozen)| frozen.name == spec.name && frozen.file == file);
    sweeps.pop()
}

/// `path` from the root, by the same name whatever the current folder.
pub(super) fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}
