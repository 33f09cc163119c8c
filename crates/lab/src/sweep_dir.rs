//! One sweep's folder: `<root>/sweeps/<name>-<8 digits>[-n]/`, with all that was fixed when it started.
//!
//! It is built beside its place and renamed, so a folder of that name is complete. Nothing in it changes afterwards but the
//! points' logs and the script that a cluster was given: how far the sweep has come is what its points' run directories say.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::sweep::frozen::{FORMAT, SweepRecord};
pub use runner_store::catalog::SWEEPS;
use runner_store::error::StoreError;
use runner_store::files::{read_json, read_small, sync_dir, write_atomic, write_json};
use runner_store::lock::RunLock;
use runner_store::run_dir::{CREATING, remove_stale_folders};

/// The sweep file as given.
pub const SWEEP: &str = "sweep.yaml";
/// What was fixed at the start.
pub const RECORD: &str = "sweep.json";
/// The script of the newest array of jobs that a cluster got.
pub const SCRIPT: &str = "slurm.sh";
/// The points' experiments, resolved, and their logs.
pub const POINTS: &str = "points";

/// A sweep that this process drives.
#[derive(Debug)]
pub struct SweepDir {
    path: PathBuf,
    frozen: SweepRecord,
    _lock: RunLock,
}

/// What a sweep starts with.
#[derive(Debug)]
pub struct SweepFiles<'a> {
    /// Its `id` is what the folder is called unless that is taken.
    pub frozen: SweepRecord,
    /// The sweep file as given.
    pub text: &'a str,
    /// The resolved experiment of each point.
    pub experiments: &'a [String],
}

/// The resolved experiment of the point `index` of the sweep in `path`.
#[must_use]
pub fn point_file(path: &Path, index: usize) -> PathBuf {
    path.join(POINTS).join(format!("{index:04}.yaml"))
}

/// What the processes of the point `index` write to their standard error.
#[must_use]
pub fn point_log(path: &Path, index: usize) -> PathBuf {
    path.join(POINTS).join(format!("{index:04}.log"))
}

/// What was fixed when the sweep in `path` started.
///
/// # Errors
/// If it is missing, damaged or of another version.
pub fn frozen(path: &Path) -> Result<SweepRecord, StoreError> {
    let file = path.join(RECORD);
    let frozen: SweepRecord = read_json(&file)?;
    if frozen.format != FORMAT {
        let message = format!("format {}, this version reads format {FORMAT}", frozen.format);
        return Err(StoreError::damaged(&file, message));
    }
    Ok(frozen)
}

/// The text of its sweep file as it was then.
///
/// # Errors
/// If it cannot be read.
pub fn text(path: &Path) -> Result<String, StoreError> {
    read_small(&path.join(SWEEP))
}

/// The sweeps in the folder of runs `root`, oldest first. Folders that cannot be read are left out; `broken` says why.
#[must_use]
pub fn list(root: &Path) -> ListedSweeps {
    let mut listed = ListedSweeps::default();
    for path in folders(root) {
        match frozen(&path) {
            Ok(frozen) => listed.sweeps.push((path, frozen)),
            Err(error) => listed.broken.push(error.to_string()),
        }
    }
    listed.sweeps.sort_by(|(a_path, a), (b_path, b)| {
        // Names end in numbers, of which a longer one is a later one.
        (&a.created, a_path.as_os_str().len(), a_path).cmp(&(&b.created, b_path.as_os_str().len(), b_path))
    });
    listed
}

/// What is in a folder of sweeps.
#[derive(Debug, Default)]
pub struct ListedSweeps {
    pub sweeps: Vec<(PathBuf, SweepRecord)>,
    pub broken: Vec<String>,
}

/// Folders of sweeps in `root`, by name.
#[must_use]
pub fn folders(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(root.join(SWEEPS)) else { return Vec::new() };
    let visible = |path: &PathBuf| !path.file_name().unwrap_or_default().to_string_lossy().starts_with('.');
    let mut out: Vec<PathBuf> =
        entries.filter_map(Result::ok).map(|e| e.path()).filter(visible).filter(|path| path.is_dir()).collect();
    out.sort();
    out
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
        let temporary = folder.join(format!("{CREATING}{}-{}", files.frozen.id, std::process::id()));
        let points = temporary.join(POINTS);
        fs::create_dir_all(&points).map_err(StoreError::io("creating", &points))?;
        let result = Self::fill(&folder, &temporary, &mut files);
        if result.is_err() {
            let _ = fs::remove_dir_all(&temporary);
        }
        result
    }

    /// Writes the batch script of an array, and says where.
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
        for (point, text) in files.frozen.points.iter().zip(files.experiments) {
            let file = point_file(temporary, point.index);
            let write = || {
                let mut out = File::create_new(&file)?;
                out.write_all(text.as_bytes())?;
                out.sync_all()
            };
            write().map_err(StoreError::io("writing", &file))?;
        }
        sync_dir(&temporary.join(POINTS))?;
        let base = files.frozen.id.clone();
        for n in 1.. {
            let id = if n == 1 { base.clone() } else { format!("{base}-{n}") };
            let path = folder.join(&id);
            if path.exists() {
                continue;
            }
            files.frozen.id = id;
            write_json(&temporary.join(RECORD), &files.frozen)?;
            match fs::rename(temporary, &path) {
                Ok(()) => break,
                // Another process took the name in between.
                Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {}
                Err(e) => return Err(StoreError::io("creating", &path)(e)),
            }
        }
        sync_dir(folder)?;
        Ok(Self { path: folder.join(&files.frozen.id), frozen: files.frozen.clone(), _lock: lock })
    }

    /// Takes the sweep in `path` to go on with it.
    ///
    /// # Errors
    /// `Locked` if another process drives it; a damaged record.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let lock = RunLock::take(path)?;
        Ok(Self { path: path.to_owned(), frozen: frozen(path)?, _lock: lock })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[must_use]
    pub fn frozen(&self) -> &SweepRecord {
        &self.frozen
    }
}

/// The folder of runs that the sweep in `path` belongs to.
#[must_use]
pub fn root(path: &Path) -> PathBuf {
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
                SweepFiles { frozen: sweep(), text: "sweep: {}\n", experiments: &experiments },
            )
            .unwrap()
        };
        assert!(list(root.path()).sweeps.is_empty());
        let first = create();
        assert!(first.path().ends_with("sweeps/s-12345678"));
        assert_eq!(fs::read_to_string(point_file(first.path(), 2)).unwrap(), "a: 2\n");
        assert_eq!(text(first.path()).unwrap(), "sweep: {}\n");
        assert_eq!(frozen(first.path()).unwrap(), sweep());
        assert!(matches!(SweepDir::open(first.path()), Err(StoreError::Locked { .. })));
        let path = first.path().to_owned();
        drop(first);
        assert_eq!(SweepDir::open(&path).unwrap().frozen(), &sweep());
        let second = create();
        assert_eq!((second.frozen().id.as_str(), super::root(second.path())), ("s-12345678-2", root.path().to_owned()));
        let ids: Vec<String> = list(root.path()).sweeps.into_iter().map(|(_, f)| f.id).collect();
        assert_eq!(ids, ["s-12345678", "s-12345678-2"]);
        assert_eq!(fs::read_dir(root.path().join(SWEEPS)).unwrap().count(), 2, "nothing temporary stays");
    }

    #[test]
    fn another_version_is_told() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("sweeps/s-1");
        fs::create_dir_all(&path).unwrap();
        let other = SweepRecord { format: FORMAT + 1, ..sweep() };
        fs::write(path.join(RECORD), serde_json::to_string(&other).unwrap()).unwrap();
        let listed = list(root.path());
        assert!(listed.sweeps.is_empty() && listed.broken[0].contains("this version reads format"), "{listed:?}");
    }
}
