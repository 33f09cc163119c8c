//! The folder of one sweep: `<root>/sweeps/<name>-<8 digits>[-n]/`, with everything that was fixed when it started.
//!
//! It is built under another name and renamed, so a folder of that name is complete. Afterwards only the points' logs and the batch
//! script change: the progress of the sweep is in the run directories of its points.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::sweep::record::{FORMAT, SweepRecord};
pub use runner_store::catalog::SWEEPS;
use runner_store::error::StoreError;
use runner_store::files::{check_format, file_name, read_json, read_small, sync_dir, write_atomic, write_json};
use runner_store::lock::RunLock;
use runner_store::run_dir::{CREATING, remove_stale_folders};

/// The sweep file as given.
pub const SWEEP: &str = "sweep.yaml";
/// The record of the sweep.
pub const RECORD: &str = "sweep.json";
/// The script of the newest array of jobs that was submitted.
pub const SCRIPT: &str = "slurm.sh";
/// The folder with the resolved experiments of the points, and their logs.
pub const POINTS: &str = "points";

/// The folder of a sweep that this process holds.
#[derive(Debug)]
pub struct SweepDir {
    path: PathBuf,
    record: SweepRecord,
    _lock: RunLock,
}

/// The first files of a new sweep.
#[derive(Debug)]
pub struct SweepFiles<'a> {
    /// Its `id` is the name of the folder unless that is taken.
    pub record: SweepRecord,
    /// The sweep file as given.
    pub text: &'a str,
    /// The resolved experiment of each point.
    pub experiments: &'a [String],
}

/// The path of the resolved experiment of the point `index` of the sweep in `path`.
#[must_use]
pub fn point_file(path: &Path, index: usize) -> PathBuf {
    path.join(POINTS).join(format!("{index:04}.yaml"))
}

/// The path of the log of the point `index`: the standard error of its processes.
#[must_use]
pub fn point_log(path: &Path, index: usize) -> PathBuf {
    path.join(POINTS).join(format!("{index:04}.log"))
}

/// Reads the record of the sweep in `path`.
///
/// # Errors
/// If it is missing, damaged or of another version.
pub fn read_record(path: &Path) -> Result<SweepRecord, StoreError> {
    let file = path.join(RECORD);
    let record: SweepRecord = read_json(&file)?;
    check_format(&file, record.format, FORMAT)?;
    Ok(record)
}

/// Reads the copy of the sweep file in the folder `path` of a sweep.
///
/// # Errors
/// If it cannot be read.
pub fn read_sweep_file(path: &Path) -> Result<String, StoreError> {
    read_small(&path.join(SWEEP))
}

/// The readable sweeps in the folder of runs `root`, oldest first.
#[must_use]
pub fn list(root: &Path) -> Vec<(PathBuf, SweepRecord)> {
    let readable = |path: PathBuf| Some((read_record(&path).ok()?, path));
    let mut sweeps: Vec<_> =
        folders(root).into_iter().filter_map(readable).map(|(record, path)| (path, record)).collect();
    // Ids end in numbers, and a longer number is a later one.
    let key = |(path, record): &(PathBuf, SweepRecord)| (record.created.clone(), path.as_os_str().len(), path.clone());
    sweeps.sort_by_key(key);
    sweeps
}

/// The newest sweep in `root` that was started from the sweep file `file` under the name `name`.
#[must_use]
pub fn newest_of_file(root: &Path, name: &str, file: &Path) -> Option<(PathBuf, SweepRecord)> {
    let file = absolute_path(file);
    list(root).into_iter().rfind(|(_, record)| record.name == name && record.file == file)
}

/// `path` from the root of the file system, without symbolic links where it exists.
#[must_use]
pub fn absolute_path(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

/// The folders of sweeps in `root`, by name.
#[must_use]
pub fn folders(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(root.join(SWEEPS)) else { return Vec::new() };
    let is_sweep = |path: &PathBuf| !file_name(path).starts_with('.') && path.is_dir();
    let mut folders: Vec<PathBuf> = entries.filter_map(Result::ok).map(|e| e.path()).filter(is_sweep).collect();
    folders.sort();
    folders
}

/// Finds the sweep that `wanted` names in the folder of runs `root`: by its folder, its id, or the unique beginning of an id. `None`
/// names the newest sweep.
///
/// # Errors
/// If there is no such sweep, or there are several.
pub fn resolve(root: &Path, wanted: Option<&str>) -> Result<PathBuf, StoreError> {
    let none = || StoreError::Refused(format!("no sweeps in {} yet: runner sweep FILE starts one", root.display()));
    let Some(wanted) = wanted else {
        return list(root).pop().map(|(path, _)| path).ok_or_else(none);
    };
    let as_path = Path::new(wanted);
    if as_path.join(RECORD).is_file() {
        return Ok(as_path.to_owned());
    }
    let mut all = folders(root);
    if let Some(exact) = all.iter().position(|path| file_name(path) == wanted) {
        return Ok(all.swap_remove(exact));
    }
    let ids: Vec<String> = all.iter().map(|path| file_name(path)).collect();
    let matching: Vec<usize> = (0..all.len()).filter(|&i| !wanted.is_empty() && ids[i].starts_with(wanted)).collect();
    match matching.as_slice() {
        [one] => Ok(all.swap_remove(*one)),
        [] if all.is_empty() => Err(none()),
        [] => {
            let known = ids.join(", ");
            Err(StoreError::Refused(format!("no sweep {wanted:?} in {}; there are: {known}", root.display())))
        }
        several => {
            let candidates: Vec<&str> = several.iter().map(|&i| ids[i].as_str()).collect();
            let candidates = candidates.join(", ");
            Err(StoreError::Refused(format!(
                "{wanted} may be any of these sweeps: {candidates}; give more of the name"
            )))
        }
    }
}

impl SweepDir {
    /// Creates the folder of a sweep in the folder of runs `root` and takes its lock.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(root: &Path, mut files: SweepFiles<'_>) -> Result<Self, StoreError> {
        let folder = root.join(SWEEPS);
        fs::create_dir_all(&folder).map_err(StoreError::io("creating", &folder))?;
        remove_stale_folders(&folder);
        let temporary = folder.join(format!("{CREATING}{}-{}", files.record.id, std::process::id()));
        let points = temporary.join(POINTS);
        fs::create_dir_all(&points).map_err(StoreError::io("creating", &points))?;
        let result = Self::fill(&folder, &temporary, &mut files);
        if result.is_err() {
            let _ = fs::remove_dir_all(&temporary);
        }
        result
    }

    /// Writes the batch script of an array, and returns its path.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_script(&self, text: &str) -> Result<PathBuf, StoreError> {
        let path = self.path.join(SCRIPT);
        write_atomic(&path, text.as_bytes())?;
        Ok(path)
    }

    fn fill(folder: &Path, temporary: &Path, files: &mut SweepFiles<'_>) -> Result<Self, StoreError> {
        let lock = RunLock::take(temporary)?;
        write_atomic(&temporary.join(SWEEP), files.text.as_bytes())?;
        for (point, text) in files.record.points.iter().zip(files.experiments) {
            let file = point_file(temporary, point.index);
            let write = || {
                let mut out = File::create_new(&file)?;
                out.write_all(text.as_bytes())?;
                out.sync_all()
            };
            write().map_err(StoreError::io("writing", &file))?;
        }
        sync_dir(&temporary.join(POINTS))?;
        let base = files.record.id.clone();
        for n in 1.. {
            let id = if n == 1 { base.clone() } else { format!("{base}-{n}") };
            let path = folder.join(&id);
            if path.exists() {
                continue;
            }
            files.record.id = id;
            write_json(&temporary.join(RECORD), &files.record)?;
            match fs::rename(temporary, &path) {
                Ok(()) => break,
                // Another process took the name in between.
                Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {}
                Err(e) => return Err(StoreError::io("creating", &path)(e)),
            }
        }
        sync_dir(folder)?;
        Ok(Self { path: folder.join(&files.record.id), record: files.record.clone(), _lock: lock })
    }

    /// Opens the sweep in `path` in order to resume it, and takes its lock.
    ///
    /// # Errors
    /// `Locked` if another process runs it; a damaged record.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let lock = RunLock::take(path)?;
        Ok(Self { path: path.to_owned(), record: read_record(path)?, _lock: lock })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[must_use]
    pub fn record(&self) -> &SweepRecord {
        &self.record
    }
}

/// The folder of runs that the sweep in `path` belongs to.
#[must_use]
pub fn runs_folder(path: &Path) -> PathBuf {
    let root = path.parent().and_then(Path::parent).unwrap_or(Path::new("."));
    if root.as_os_str().is_empty() { PathBuf::from(".") } else { root.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sweep;

    #[test]
    fn a_new_sweep_has_its_files_and_is_found() {
        let root = tempfile::tempdir().unwrap();
        let experiments = ["a: 1\n".to_owned(), "a: 2\n".to_owned(), "a: 3\n".to_owned()];
        let create = || {
            SweepDir::create(
                root.path(),
                SweepFiles { record: sweep(), text: "sweep: {}\n", experiments: &experiments },
            )
            .unwrap()
        };
        assert!(list(root.path()).is_empty());
        let first = create();
        assert!(first.path().ends_with("sweeps/s-12345678"));
        assert_eq!(fs::read_to_string(point_file(first.path(), 2)).unwrap(), "a: 2\n");
        assert_eq!(read_sweep_file(first.path()).unwrap(), "sweep: {}\n");
        assert_eq!(read_record(first.path()).unwrap(), sweep());
        assert!(matches!(SweepDir::open(first.path()), Err(StoreError::Locked { .. })));
        let path = first.path().to_owned();
        drop(first);
        assert_eq!(SweepDir::open(&path).unwrap().record(), &sweep());
        let second = create();
        assert_eq!((second.record().id.as_str(), runs_folder(second.path())), ("s-12345678-2", root.path().to_owned()));
        let ids: Vec<String> = list(root.path()).into_iter().map(|(_, f)| f.id).collect();
        assert_eq!(ids, ["s-12345678", "s-12345678-2"]);
        let resolved = |wanted: Option<&str>| resolve(root.path(), wanted).map(|path| file_name(&path));
        assert_eq!(resolved(None).unwrap(), "s-12345678-2");
        assert_eq!(resolved(Some("s-12345678")).unwrap(), "s-12345678");
        assert!(resolved(Some("s-1")).unwrap_err().to_string().contains("give more of the name"));
        assert!(resolved(Some("none")).unwrap_err().is_request());
        assert_eq!(fs::read_dir(root.path().join(SWEEPS)).unwrap().count(), 2, "nothing temporary stays");
    }

    #[test]
    fn another_version_is_told() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("sweeps/s-1");
        fs::create_dir_all(&path).unwrap();
        let other = SweepRecord { format: FORMAT + 1, ..sweep() };
        fs::write(path.join(RECORD), serde_json::to_string(&other).unwrap()).unwrap();
        assert!(list(root.path()).is_empty());
        let error = read_record(&path).unwrap_err().to_string();
        assert!(error.contains("this version reads format"), "{error}");
    }
}
