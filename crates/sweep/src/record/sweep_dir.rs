//! The folder of one sweep: `<root>/sweeps/<name>-<8 digits>[-n]/`, with everything that was fixed when it started.
//!
//! It is built under another name and renamed, so a folder of that name is complete. Afterwards only the points' logs and the batch
//! script change: the progress of the sweep is in the run directories of its points.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use crate::record::{FORMAT, SweepRecord, describe_values};
use crate::{SweepSpec, from_str};
use runner_record::catalog::{SLURM_SCRIPT, SWEEP_FILE, SWEEP_POINTS, SWEEP_RECORD, SWEEPS};
use runner_record::files::{check_format, file_name, indented_json, read_json, read_small, sync_dir};
use runner_record::manifest::SweepPoint;
use runner_record::run_dir::UnfinishedFolder;
use runner_record::{RecordError, RunLock, write_atomic};
use runner_spec::diagnostic::ConfigError;
use runner_spec::format::quoted_line;
use runner_spec::safe_text::is_plain_line;

/// The folder of a sweep that this process holds.
#[derive(Debug)]
pub struct SweepDir {
    path: PathBuf,
    record: SweepRecord,
    _lock: RunLock,
}

/// The path of the resolved experiment of the point `index` of the sweep in `path`.
#[must_use]
pub fn point_file(path: &Path, index: usize) -> PathBuf {
    path.join(SWEEP_POINTS).join(format!("{index:04}.yaml"))
}

/// The path of the log of the point `index`: the standard error of its processes.
#[must_use]
pub fn point_log(path: &Path, index: usize) -> PathBuf {
    path.join(SWEEP_POINTS).join(format!("{index:04}.log"))
}

/// The path of the output of the job of point `index`, if the sweep ran as an array of jobs.
#[must_use]
pub fn point_job_output(path: &Path, index: usize) -> PathBuf {
    path.join(SWEEP_POINTS).join(format!("{index:04}.job"))
}

/// The advice about a sweep whose record cannot be read.
const RECORD_ADVICE: &str =
    "restore the file, or move the sweep's folder away; runs that are done stay, and no sweep repeats them";

/// Reads the record of the sweep in `path`.
///
/// # Errors
/// If it is missing, damaged or of another version.
pub fn read_record(path: &Path) -> Result<SweepRecord, RecordError> {
    let file = path.join(SWEEP_RECORD);
    let read = || {
        let record: SweepRecord = read_json(&file)?;
        check_format(&file, record.format, FORMAT)?;
        Ok(record)
    };
    read().map_err(|error| match error {
        RecordError::Damaged { path, message } => RecordError::damaged(&path, format!("{message}; {RECORD_ADVICE}")),
        RecordError::Io { path, source, .. } => RecordError::damaged(&path, format!("{source}; {RECORD_ADVICE}")),
        other => other,
    })
}

/// Reads the copy of the sweep file in the folder `path` of a sweep.
///
/// # Errors
/// If it is missing or damaged.
pub fn read_copy(path: &Path) -> Result<SweepSpec, RecordError> {
    let file = path.join(SWEEP_FILE);
    from_str(&read_small(&file)?, &file).map_err(|mistakes| damaged_copy(&file, &mistakes))
}

/// The error of `file`, which was legal when the sweep wrote it and now has `mistakes`.
#[must_use]
pub fn damaged_copy(file: &Path, mistakes: &ConfigError) -> RecordError {
    let first = mistakes.diagnostics.first();
    let mistake = first.map_or_else(String::new, |first| match first.line {
        0 => format!(": {}", first.message),
        line => format!(": line {line}: {}", first.message),
    });
    RecordError::damaged(file, format!("this file of the sweep is damaged or was edited{mistake}"))
}

/// The folder of a sweep, and its record.
type ListedSweep = (PathBuf, SweepRecord);

/// The readable sweeps in the folder of runs `root`, oldest first, and the folders of the others with their errors.
fn list(root: &Path) -> (Vec<ListedSweep>, Vec<(PathBuf, RecordError)>) {
    let (mut sweeps, mut unreadable) = (Vec::new(), Vec::new());
    for path in folders(root) {
        match read_record(&path) {
            Ok(record) => sweeps.push((path, record)),
            Err(error) => unreadable.push((path, error)),
        }
    }
    // Ids end in numbers, and a longer number is a later one.
    let key = |(path, record): &ListedSweep| (record.created.clone(), path.as_os_str().len(), path.clone());
    sweeps.sort_by_key(key);
    (sweeps, unreadable)
}

/// The newest sweep in `root` that was started from the sweep file `file` under the name `name`.
///
/// # Errors
/// If the record of a sweep of that name cannot be read: the sweep may be the wanted one.
pub fn newest_of_file(root: &Path, name: &str, file: &Path) -> Result<Option<(PathBuf, SweepRecord)>, RecordError> {
    let file = absolute_path(file);
    let (sweeps, unreadable) = list(root);
    let has_name = |path: &Path| {
        let id = file_name(path);
        let digits = id.strip_prefix(name).and_then(|rest| rest.strip_prefix('-')?.get(..8));
        digits.is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    if let Some((_, error)) = unreadable.into_iter().find(|(path, _)| has_name(path)) {
        return Err(RecordError::Refused(format!(
            "a sweep called {name} cannot be read, and may be the one to resume: {error}; use `--new` to start a \
             new sweep"
        )));
    }
    Ok(sweeps.into_iter().rfind(|(_, record)| record.name == name && record.file == file))
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
    let is_name = |name: &str| !name.starts_with('.') && is_plain_line(name);
    let is_sweep = |path: &PathBuf| is_name(&file_name(path)) && path.is_dir();
    let mut folders: Vec<PathBuf> = entries.filter_map(Result::ok).map(|e| e.path()).filter(is_sweep).collect();
    folders.sort();
    folders
}

/// The folder of the sweep `id`, which a manifest names, if it exists among the sweeps of `root`.
#[must_use]
pub fn folder_of_id(root: &Path, id: &str) -> Option<PathBuf> {
    let mut parts = Path::new(id).components();
    let is_name = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    Some(root.join(SWEEPS).join(id)).filter(|folder| is_name && folder.is_dir())
}

/// The record of the sweep `id`, which a manifest names, if it exists among the sweeps of `root` and can be read.
pub(crate) fn record_of_id(root: &Path, id: &str) -> Option<SweepRecord> {
    read_record(&folder_of_id(root, id)?).ok()
}

/// The varied values at `point` of a sweep in the folder of runs `root`, as `lr=0.001 layers=2`; `None` if the sweep can no longer be read.
#[must_use]
pub fn values_of_point(root: &Path, point: &SweepPoint) -> Option<String> {
    Some(describe_values(&record_of_id(root, &point.id)?.point(point.point)?.values))
}

/// The folder of the sweep that `wanted` names: a folder, or an id among the sweeps of `root`.
#[must_use]
pub fn find_folder(root: &Path, wanted: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(wanted);
    if !wanted.is_empty() && folder.join(SWEEP_RECORD).is_file() {
        return Some(folder);
    }
    folders(root).into_iter().find(|path| file_name(path) == wanted)
}

/// The sweeps in the folder of runs `root` that `wanted` names, oldest first: by the folder or the id, else by the name, else by the beginning
/// of their ids. A sweep file, which may have been removed, names the newest sweep that was started from it.
fn matching(root: &Path, wanted: &str) -> Vec<PathBuf> {
    if let Some(folder) = find_folder(root, wanted) {
        return vec![folder];
    }
    if wanted.is_empty() {
        return Vec::new();
    }
    let (sweeps, _) = list(root);
    let named: Vec<PathBuf> =
        sweeps.iter().filter(|(_, record)| record.name == wanted).map(|(path, _)| path.clone()).collect();
    if !named.is_empty() {
        return named;
    }
    let mut beginning = folders(root);
    beginning.retain(|path| file_name(path).starts_with(wanted));
    if beginning.is_empty() {
        let file = absolute_path(Path::new(wanted));
        beginning.extend(sweeps.into_iter().rfind(|(_, record)| record.file == file).map(|(path, _)| path));
    }
    beginning
}

/// Finds the sweep that `wanted` names; `None` if there is none.
///
/// # Errors
/// If there are several.
pub fn find(root: &Path, wanted: &str) -> Result<Option<PathBuf>, RecordError> {
    let mut matching = matching(root, wanted);
    if matching.len() > 1 {
        let candidates = matching.iter().map(|path| file_name(path)).collect::<Vec<_>>().join(", ");
        let message = format!("{wanted} matches several sweeps: {candidates}; use a longer prefix of the id");
        return Err(RecordError::Refused(message));
    }
    Ok(matching.pop())
}

/// Finds the sweep that `wanted` names, for a command that changes nothing: a name stands for the newest sweep of that name.
///
/// # Errors
/// If ids of several sweeps begin with `wanted`.
pub fn find_newest(root: &Path, wanted: &str) -> Result<Option<PathBuf>, RecordError> {
    let newest = matching(root, wanted).pop();
    let has_name = newest.as_ref().is_some_and(|path| read_record(path).is_ok_and(|record| record.name == wanted));
    if has_name { Ok(newest) } else { find(root, wanted) }
}

/// Finds the sweep that `wanted` names, as [`find_newest`] does. `None` names the newest sweep.
///
/// # Errors
/// If there is no such sweep, or there are several; if the newest is wanted and a record cannot be read.
pub fn resolve(root: &Path, wanted: Option<&str>) -> Result<PathBuf, RecordError> {
    let Some(wanted) = wanted else {
        let (mut sweeps, unreadable) = list(root);
        if let Some((_, error)) = unreadable.first() {
            let message =
                format!("the newest sweep is unknown, because a record cannot be read: {error}; name a sweep");
            return Err(RecordError::Refused(message));
        }
        return sweeps.pop().map(|(path, _)| path).ok_or_else(|| no_sweeps(root));
    };
    find_newest(root, wanted)?.ok_or_else(|| unknown_sweep(root, wanted))
}

/// Finds the sweep that `wanted` names, as [`find`] does.
///
/// # Errors
/// If there is no such sweep, or there are several.
pub fn resolve_one(root: &Path, wanted: &str) -> Result<PathBuf, RecordError> {
    find(root, wanted)?.ok_or_else(|| unknown_sweep(root, wanted))
}

fn no_sweeps(root: &Path) -> RecordError {
    RecordError::Refused(format!("no sweeps in {} yet; start one with `runner sweep FILE`", root.display()))
}

fn unknown_sweep(root: &Path, wanted: &str) -> RecordError {
    let ids: Vec<String> = folders(root).iter().map(|path| quoted_line(&file_name(path))).collect();
    if ids.is_empty() {
        return no_sweeps(root);
    }
    RecordError::Refused(format!("no sweep {wanted:?} in {}; there are: {}", root.display(), ids.join(", ")))
}

impl SweepDir {
    /// Creates the folder of a sweep in the folder of runs `root` and takes its lock. The `id` of `record` is its name unless that is taken;
    /// `text` is the sweep file, and `experiments` has the resolved experiment of each point. If `is_private`, only the owner may read them,
    /// because they hold values of `env()`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(
        root: &Path,
        mut record: SweepRecord,
        text: &str,
        experiments: &[String],
        is_private: bool,
    ) -> Result<Self, RecordError> {
        let (folder, base) = (root.join(SWEEPS), record.id.clone());
        let unfinished = UnfinishedFolder::create(&folder, &base)?;
        let copy = unfinished.path().join(SWEEP_FILE);
        runner_files::write_atomic_as(&copy, text.as_bytes(), is_private).map_err(RecordError::io("writing", &copy))?;
        let points = unfinished.path().join(SWEEP_POINTS);
        fs::create_dir(&points).map_err(RecordError::io("creating", &points))?;
        for (point, experiment) in record.points.iter().zip(experiments) {
            let file = point_file(unfinished.path(), point.index);
            let write = || {
                let mode = if is_private { 0o600 } else { 0o666 };
                let mut out = File::options().write(true).create_new(true).mode(mode).open(&file)?;
                out.write_all(experiment.as_bytes())?;
                out.sync_all()
            };
            write().map_err(RecordError::io("writing", &file))?;
        }
        sync_dir(&points)?;
        let (path, lock) = unfinished.finish(&mut |temporary, id| {
            record.id = id;
            let path = temporary.join(SWEEP_RECORD);
            let bytes = indented_json(&path, &record)?;
            runner_files::write_atomic_as(&path, &bytes, is_private).map_err(RecordError::io("writing", &path))
        })?;
        Ok(Self { path, record, _lock: lock })
    }

    /// Writes the batch script of an array, and returns its path.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_script(&self, text: &str) -> Result<PathBuf, RecordError> {
        let path = self.path.join(SLURM_SCRIPT);
        write_atomic(&path, text.as_bytes())?;
        Ok(path)
    }

    /// Opens the sweep in `path` in order to resume it, and takes its lock.
    ///
    /// # Errors
    /// `Locked` if another process runs it; a damaged record.
    pub fn open(path: &Path) -> Result<Self, RecordError> {
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
    use runner_spec::error::{Classified as _, ErrorKind};

    use super::*;
    use crate::testing::sweep;

    #[test]
    fn a_new_sweep_has_its_files_and_is_found() {
        let root = tempfile::tempdir().unwrap();
        let experiments = ["a: 1\n".to_owned(), "a: 2\n".to_owned(), "a: 3\n".to_owned()];
        let create = || SweepDir::create(root.path(), sweep(), "sweep: {}\n", &experiments, false).unwrap();
        assert!(list(root.path()).0.is_empty());
        let first = create();
        assert!(first.path().ends_with("sweeps/s-12345678"));
        assert_eq!(fs::read_to_string(point_file(first.path(), 2)).unwrap(), "a: 2\n");
        assert_eq!(read_record(first.path()).unwrap(), sweep());
        assert!(matches!(SweepDir::open(first.path()), Err(RecordError::Locked { .. })));
        let path = first.path().to_owned();
        drop(first);
        assert_eq!(SweepDir::open(&path).unwrap().record(), &sweep());
        let second = create();
        assert_eq!((second.record().id.as_str(), runs_folder(second.path())), ("s-12345678-2", root.path().to_owned()));
        let ids: Vec<String> = list(root.path()).0.into_iter().map(|(_, f)| f.id).collect();
        assert_eq!(ids, ["s-12345678", "s-12345678-2"]);
        let resolved = |wanted: Option<&str>| resolve(root.path(), wanted).map(|path| file_name(&path));
        assert_eq!(resolved(None).unwrap(), "s-12345678-2");
        assert_eq!(resolved(Some("s-12345678")).unwrap(), "s-12345678");
        assert_eq!(resolved(Some("s")).unwrap(), "s-12345678-2", "the newest of this name");
        assert!(find(root.path(), "s").unwrap_err().to_string().contains("matches several sweeps"));
        assert!(resolved(Some("s-1")).unwrap_err().to_string().contains("use a longer prefix of the id"));
        assert!(resolved(Some("none")).unwrap_err().kind() == ErrorKind::Request);
        assert_eq!(fs::read_dir(root.path().join(SWEEPS)).unwrap().count(), 2, "nothing temporary stays");
    }

    #[test]
    fn a_damaged_sweep_is_not_skipped() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("s.yaml");
        let make = |folder: &str, content: &str| {
            let path = root.path().join("sweeps").join(folder);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join(SWEEP_RECORD), content).unwrap();
        };
        make("s-t-12345678", "{");
        assert!(newest_of_file(root.path(), "s", &file).unwrap().is_none(), "a sweep of another name");
        make("s-12345678-2", "{\"format\": 1");
        let error = newest_of_file(root.path(), "s", &file).unwrap_err();
        let text = error.to_string();
        assert!(
            error.kind() == ErrorKind::Request
                && text.contains("s-12345678-2/sweep.json: EOF")
                && text.contains("--new"),
            "{text}"
        );
        fs::remove_file(root.path().join("sweeps/s-12345678-2/sweep.json")).unwrap();
        let text = newest_of_file(root.path(), "s", &file).unwrap_err().to_string();
        assert!(text.contains("sweep.json: No such file") && text.contains("restore the file"), "{text}");
    }

    #[test]
    fn the_copy_of_the_sweep_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(SWEEP_FILE), "sweep: {base: e.yaml\n").unwrap();
        let error = read_copy(folder.path()).unwrap_err().to_string();
        assert!(error.contains("sweep.yaml: this file of the sweep is damaged or was edited: line 1:"), "{error}");
    }

    #[test]
    fn a_sweep_of_another_version_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("sweeps/s-1");
        fs::create_dir_all(&path).unwrap();
        let other = SweepRecord { format: FORMAT + 1, ..sweep() };
        fs::write(path.join(SWEEP_RECORD), serde_json::to_string(&other).unwrap()).unwrap();
        let error = read_record(&path).unwrap_err().to_string();
        assert!(
            error.contains("this version of runner reads format") && error.contains("move the sweep's folder away"),
            "{error}"
        );
        let error = resolve(root.path(), None).unwrap_err().to_string();
        assert!(error.contains("s-1/sweep.json") && error.contains("name a sweep"), "{error}");
    }
}
