//! The folder of one run: `<root>/<name>-<first 8 digits of the plan hash>[-n]/`.
//!
//! It is built under another name and renamed, so a folder of that name always has all of its first files.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::checkpoint::{CheckpointChoice, Checkpoints, recorded_hash, recorded_position};
use super::error::RecordError;
use super::files::{
    check_format, file_name, if_present, indented_json, read_sealed_json, sealed_json, sync_dir, write_atomic,
    write_sealed_json,
};
use super::inherited_evaluations::EvaluationChanges;
use super::lines::copy_through_step;
use super::lock::RunLock;
use super::manifest::{ContinuedFrom, FORMAT, Manifest, Session};
use super::metrics::MetricLine;
pub use super::names::{
    CHECKPOINTS, CREATING, DATA, EXPERIMENT, JOB_LOG, LOG, MANIFEST, MERGED_FILES, METRICS, PLAN, RANKS, REMOVING,
    RESOLVED, ROWS, SAMPLES, SLURM_SCRIPT, SUMMARY, TEMPLATE, TENSORBOARD, TOKENIZER, TRACE, VERDICT, is_id, rank_log,
};
use super::own_files::{foreign_path_in_run, foreign_path_in_sweep};
use super::rows;
use super::summary::Summary;
use super::time;
use runner_files::{
    TempDir, children, create_dir_all, is_number, is_older_than, is_real_folder, is_temporary_name, leftovers,
    remove_all, temporary_dir, write_atomic_as,
};
use runner_machine::host::Git;
use runner_spec::format::{json_bytes, short_hash};
use runner_spec::plan::Plan;

/// An unlocked folder of this age was left behind by a killed process.
const STALE_AGE: Duration = Duration::from_secs(10);

/// The checkpoint of another run that a new run begins with.
#[derive(Debug, Clone, Copy)]
pub struct BeginningCheckpoint<'a> {
    /// The run directory of the other run.
    pub path: &'a Path,
    /// The plan of the other run.
    pub plan: &'a Plan,
    pub which: CheckpointChoice,
    /// True if the new run's plan computes the steps up to the checkpoint to the same bits.
    pub is_same_computation: bool,
}

/// The first files of a new run.
#[derive(Debug)]
pub struct RunFiles<'a> {
    /// The experiment file as given.
    pub experiment: &'a str,
    pub resolved: &'a str,
    /// The template, if the file was rendered from one.
    pub template: Option<&'a str>,
    /// The text of the other files that the experiment was merged from, if there are any.
    pub merged: Option<&'a str>,
    /// True if the experiment and the manifest hold values that only the owner of the run may read, such as those of `env()`.
    pub is_private: bool,
    pub plan: &'a Plan,
    pub manifest: Manifest,
}

/// A run directory that this process holds.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    manifest: Manifest,
    lock: RunLock,
}

/// The runs of a plan that were found.
#[derive(Debug, Default)]
pub struct RunLookup {
    /// The newest run that was looked for, and its manifest.
    pub run: Option<(PathBuf, Manifest)>,
    /// The reasons why folders of the same name cannot be read as runs.
    pub broken: Vec<String>,
}

/// The folder name of the first run of a plan; later ones append `-2`, `-3`, …
pub fn base_id(name: &str, plan_hash: &str) -> String {
    format!("{name}-{}", plan_hash.get(..8).unwrap_or(plan_hash))
}

/// Reads the manifest of the run directory `path`.
///
/// # Errors
/// If it is missing, damaged or of another version.
pub fn read_manifest(path: &Path) -> Result<Manifest, RecordError> {
    let file = path.join(MANIFEST);
    let advice = "restore it from a copy, or remove the run";
    let manifest: Manifest = read_sealed_json(&file).map_err(|error| match error {
        RecordError::Damaged { path, message } => {
            RecordError::damaged(&path, format!("the manifest of the run is damaged ({message}); {advice}"))
        }
        RecordError::Io { source, .. } if source.kind() == ErrorKind::NotFound && path.is_dir() => {
            RecordError::damaged(&file, format!("the manifest of the run is missing; {advice}"))
        }
        other => other,
    })?;
    check_format(&file, manifest.format, FORMAT)?;
    Ok(manifest)
}

/// The path of the resolved experiment of the run directory `path`.
///
/// # Errors
/// If the file is missing.
pub fn resolved_file(path: &Path) -> Result<PathBuf, RecordError> {
    let file = path.join(RESOLVED);
    if file.exists() {
        return Ok(file);
    }
    Err(RecordError::damaged(&file, "the resolved experiment of the run is missing; restore it from a copy"))
}

/// True if only their owner may read the settings of the run directory `path`, as [`RunFiles::is_private`] asks for.
#[must_use]
pub fn has_private_settings(path: &Path) -> bool {
    runner_files::is_private_file(&path.join(RESOLVED))
}

/// Reads the summary of the run directory `path`; `None` if it has none yet.
///
/// # Errors
/// If it is damaged.
pub fn read_summary(path: &Path) -> Result<Option<Summary>, RecordError> {
    if_present(read_sealed_json(&path.join(SUMMARY)))
}

/// The names in a folder of runs at one moment, so that many runs are found with one reading of the folder.
#[derive(Debug, Default)]
pub struct RunsSnapshot {
    names: BTreeMap<String, PathBuf>,
}

impl RunsSnapshot {
    /// Reads the folder of runs `root`. A missing or unreadable folder has no runs.
    pub fn read(root: &Path) -> Self {
        let entries = fs::read_dir(root).into_iter().flatten().filter_map(Result::ok);
        let names = entries.filter_map(|e| Some((e.file_name().into_string().ok()?, e.path()))).collect();
        Self { names }
    }

    /// Finds the newest run called `name` that stands for the plan with this hash.
    pub fn find(&self, name: &str, plan_hash: &str) -> RunLookup {
        self.find_where(name, plan_hash, |_, manifest| manifest.stands_for_its_plan())
    }

    /// Finds the newest run called `name` of the plan with this hash that `is_wanted`, whatever it was made from.
    fn find_where(&self, name: &str, plan_hash: &str, is_wanted: impl Fn(&Path, &Manifest) -> bool) -> RunLookup {
        let mut found = RunLookup::default();
        for (_, path) in self.siblings(&base_id(name, plan_hash)) {
            match read_manifest(&path) {
                Ok(manifest) if manifest.plan_hash == plan_hash => {
                    if is_wanted(&path, &manifest) {
                        found.run = Some((path, manifest));
                    }
                }
                Ok(manifest) => found.broken.push(format!(
                    "{}: the manifest was changed: it names the plan {}, but the name of the folder has the plan {}",
                    path.join(MANIFEST).display(),
                    short_hash(&manifest.plan_hash),
                    short_hash(plan_hash)
                )),
                Err(error) => found.broken.push(error.to_string()),
            }
        }
        found
    }

    /// The folders called `base` or `base-n` (n from 2), by n.
    fn siblings(&self, base: &str) -> Vec<(u64, PathBuf)> {
        let from = self.names.range(base.to_owned()..).take_while(|(name, _)| name.starts_with(base));
        let numbered = from.filter_map(|(name, path)| {
            let rest = name.strip_prefix(base)?;
            let n = if rest.is_empty() { 1 } else { rest.strip_prefix('-')?.parse().ok()? };
            Some((n, path.clone()))
        });
        let mut out: Vec<(u64, PathBuf)> = numbered.collect();
        out.sort();
        out
    }
}

/// Finds the newest run of `plan` in `root` under the name of its experiment that `is_wanted`.
pub fn find_run_where(root: &Path, plan: &Plan, is_wanted: impl Fn(&Path, &Manifest) -> bool) -> RunLookup {
    RunsSnapshot::read(root).find_where(&plan.experiment_name, &plan.hash, is_wanted)
}

/// Finds the runs of `plan` in `root` under the name of its experiment.
pub fn find_run(root: &Path, plan: &Plan) -> RunLookup {
    RunsSnapshot::read(root).find(&plan.experiment_name, &plan.hash)
}

/// A folder that is built under another name and renamed once it is complete, so that after a kill at any moment it is complete or
/// does not exist. It is locked from the beginning.
#[derive(Debug)]
pub struct UnfinishedFolder<'a> {
    root: &'a Path,
    base: &'a str,
    folder: TempDir,
    lock: RunLock,
}

impl<'a> UnfinishedFolder<'a> {
    /// Creates an empty folder in `root`, which is to be called `base`, or `base-n` if there are others of that name. Removes what killed
    /// processes left behind.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(root: &'a Path, base: &'a str) -> Result<Self, RecordError> {
        create_dir_all(root).map_err(RecordError::io("creating", root))?;
        // One that cannot be removed stays: it does no harm.
        remove_all(&stale_folders(root));
        let folder = temporary_dir(root, &format!("{CREATING}{base}-"));
        let folder = folder.map_err(RecordError::io("creating a folder in", root))?;
        let lock = RunLock::take(folder.path())?;
        Ok(Self { root, base, folder, lock })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Gives the folder its name, which is its id. `write_record` writes the file that holds the id, perhaps several times.
    ///
    /// # Errors
    /// If it cannot be written, and those of `write_record`.
    pub fn finish(
        self,
        write_record: &mut dyn FnMut(&Path, String) -> Result<(), RecordError>,
    ) -> Result<(PathBuf, RunLock), RecordError> {
        let Self { root, base, folder, lock } = self;
        loop {
            let n = RunsSnapshot::read(root).siblings(base).last().map_or(1, |(n, _)| n + 1);
            let id = if n == 1 { base.to_owned() } else { format!("{base}-{n}") };
            let path = root.join(&id);
            write_record(folder.path(), id)?;
            match fs::rename(folder.path(), &path) {
                Ok(()) => {
                    sync_dir(root)?;
                    return Ok((path, lock));
                }
                // Another process took the name in between.
                Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {}
                Err(e) => return Err(RecordError::io("creating", &path)(e)),
            }
        }
    }
}

impl RunDir {
    /// Creates the next run of `files.plan` in `root` and takes its lock. With `from`, the new run begins with that checkpoint of the other
    /// run and with the other run's record up to the checkpoint; `continued_from` in the manifest names them. The caller decides whether the
    /// two runs are the same training. The other run is not changed, and may be training. After a kill at any moment the new run has all of
    /// its first files, or does not exist.
    ///
    /// # Errors
    /// If the checkpoint does not exist or cannot be used, or the folder cannot be written.
    pub fn create(
        root: &Path,
        mut files: RunFiles<'_>,
        from: Option<&BeginningCheckpoint<'_>>,
    ) -> Result<Self, RecordError> {
        let base = base_id(&files.plan.experiment_name, &files.plan.hash);
        let unfinished = UnfinishedFolder::create(root, &base)?;
        let temporary = unfinished.path();
        let texts = [
            (EXPERIMENT, Some(files.experiment)),
            (RESOLVED, Some(files.resolved)),
            (TEMPLATE, files.template),
            (MERGED_FILES, files.merged),
        ];
        for (name, text) in texts {
            let (path, Some(text)) = (temporary.join(name), text) else { continue };
            write_atomic_as(&path, text.as_bytes(), files.is_private).map_err(RecordError::io("writing", &path))?;
        }
        let plan = indented_json(&temporary.join(PLAN), files.plan)?;
        write_atomic(&temporary.join(PLAN), &plan)?;
        let hash_of = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
        files.manifest.resolved_hash = hash_of(files.resolved.as_bytes());
        files.manifest.plan_file_hash = hash_of(&plan);
        let checkpoints = temporary.join(CHECKPOINTS);
        fs::create_dir(&checkpoints).map_err(RecordError::io("creating", &checkpoints))?;
        if let Some(from) = from {
            files.manifest.continued_from = Some(copy_beginning(temporary, files.plan, from)?);
        }
        let (path, lock) = unfinished.finish(&mut |temporary, id| {
            files.manifest.id = id;
            let path = temporary.join(MANIFEST);
            let bytes = sealed_json(&path, &files.manifest)?;
            write_atomic_as(&path, &bytes, files.is_private).map_err(RecordError::io("writing", &path))
        })?;
        Ok(Self { path, manifest: files.manifest, lock })
    }

    /// Opens the run directory `path` in order to resume it: takes its lock, and removes what a killed process left unfinished.
    ///
    /// # Errors
    /// `Locked` if another process works on it; a damaged manifest.
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        let lock = RunLock::take(path)?;
        let manifest = read_manifest(path)?;
        remove_all(&leftovers(path, |_| false));
        Ok(Self { path: path.to_owned(), manifest, lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn id(&self) -> String {
        file_name(&self.path)
    }

    /// A warning where the file system has no locks.
    #[must_use]
    pub fn lock_warning(&self) -> Option<String> {
        (!self.lock.is_exclusive()).then(|| {
            format!(
                "the file system of {} has no file locks, so nothing keeps a second process from training this run at the same time, which \
                 would damage its record",
                self.path.display()
            )
        })
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Records that `session` of this process starts, in a working folder of the state `git`.
    ///
    /// # Errors
    /// If the manifest cannot be written.
    pub fn begin_session(&mut self, git: Option<Git>, session: Session, plan: &Plan) -> Result<(), RecordError> {
        self.manifest.begin_session(git, session, plan);
        write_sealed_json(&self.path.join(MANIFEST), &self.manifest)
    }

    /// Records that all ranks are started again, in the same session.
    ///
    /// # Errors
    /// If the manifest cannot be written.
    pub fn record_restart(&mut self) -> Result<(), RecordError> {
        if let Some(session) = self.manifest.sessions.last_mut() {
            session.restarts += 1;
        }
        write_sealed_json(&self.path.join(MANIFEST), &self.manifest)
    }

    /// Writes `value` to the file `name` of the run, as sealed JSON.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_json(&self, name: &str, value: &impl serde::Serialize) -> Result<(), RecordError> {
        write_sealed_json(&self.path.join(name), value)
    }

    /// Writes a text to the file `name` of the run, unless that exists.
    ///
    /// # Errors
    /// If it cannot be written, and those of `text`.
    pub fn write_once<E: From<RecordError>>(
        &self,
        name: &str,
        text: impl FnOnce() -> Result<String, E>,
    ) -> Result<(), E> {
        let path = self.path.join(name);
        if path.exists() { Ok(()) } else { Ok(write_atomic(&path, text()?.as_bytes())?) }
    }

    /// Records how the session ended: the rows that are kept, then the summary, then the manifest, whose status counts.
    ///
    /// # Errors
    /// If one of them cannot be written.
    pub fn end_session(&mut self, summary: &Summary) -> Result<(), RecordError> {
        rows::keep_last_and_best(&self.path, summary)?;
        write_sealed_json(&self.path.join(SUMMARY), summary)?;
        self.manifest.end_session(summary.status, summary.error.clone(), summary.steps, time::now());
        write_sealed_json(&self.path.join(MANIFEST), &self.manifest)
    }
}

/// Copies the checkpoint of the run `from`, and its record up to it, to the unfinished run directory `to` of the plan `ours`.
fn copy_beginning(to: &Path, ours: &Plan, from: &BeginningCheckpoint<'_>) -> Result<ContinuedFrom, RecordError> {
    let other = read_manifest(from.path)?;
    let checkpoints = Checkpoints::open(&to.join(CHECKPOINTS), &ours.hash, 1)?.with_rows(ours.row_sequence());
    let changes = EvaluationChanges::between(from.plan, &other.id, ours);
    let (step, _) = checkpoints.adopt(&from.path.join(CHECKPOINTS), from.which, changes.inherits_validation_loss())?;
    let tokens = recorded_position(&to.join(CHECKPOINTS), step).map(|saved| saved.tokens);
    let state_hash = recorded_hash(&to.join(CHECKPOINTS), step).map(|hash| hash.state);
    copy_through_step(&from.path.join(METRICS), &to.join(METRICS), step, |line| inherited_line(line, &changes))?;
    copy_through_step(&from.path.join(SAMPLES), &to.join(SAMPLES), step, |line| line.into())?;
    if changes == EvaluationChanges::default() {
        copy_through_step(&from.path.join(ROWS), &to.join(ROWS), step, |line| line.into())?;
    }
    let mut sessions = if from.is_same_computation { other.described_sessions() } else { Vec::new() };
    sessions.retain(|session| session.from_step < step);
    Ok(ContinuedFrom {
        id: other.id,
        step,
        plan_hash: other.plan_hash,
        is_same_computation: from.is_same_computation,
        tokens,
        omitted_evaluations: changes.describe(),
        state_hash,
        sessions,
    })
}

/// The part of a line of metrics that is inherited: all of it, except for evaluations that are measured in another way.
fn inherited_line<'a>(line: &'a [u8], changes: &EvaluationChanges) -> Cow<'a, [u8]> {
    match serde_json::from_slice(line) {
        Ok(MetricLine::Eval(eval)) if *changes != EvaluationChanges::default() => {
            let part = changes.inherited_part(&eval).map(MetricLine::Eval);
            part.map_or_else(Vec::new, |part| [json_bytes(&part), b"\n".to_vec()].concat()).into()
        }
        _ => line.into(),
    }
}

/// Folders in `root` that a process left behind when it was killed while it created or removed a run or a sweep: not locked, not new, and
/// with nothing in them that the program did not write.
pub fn stale_folders(root: &Path) -> Vec<PathBuf> {
    let is_stale = |path: &PathBuf| {
        let has_only_own_files = || {
            [foreign_path_in_run(path), foreign_path_in_sweep(path)].iter().any(|foreign| matches!(foreign, Ok(None)))
        };
        is_stale_name(&file_name(path))
            && is_real_folder(path)
            && is_older_than(path, STALE_AGE)
            && RunLock::is_free(path)
            && has_only_own_files()
    };
    children(root).into_iter().filter(is_stale).collect()
}

/// True for the name of a folder that is being created or removed: the prefix, the id of a run or sweep, and random characters or the
/// number of a process.
fn is_stale_name(name: &str) -> bool {
    let is_removed =
        |rest: &str| rest.rsplit_once('-').is_some_and(|(id, process)| !id.is_empty() && is_number(process));
    let is_created = |rest: &str| {
        let prefix = rest.rfind('-').map_or("", |end| &rest[..=end]);
        prefix.len() > 1 && is_temporary_name(OsStr::new(rest), prefix)
    };
    name.strip_prefix(REMOVING).is_some_and(is_removed) || name.strip_prefix(CREATING).is_some_and(is_created)
}

#[cfg(test)]
mod tests;
