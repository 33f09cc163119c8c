//! One run's folder: `<root>/<name>-<plan hash, 8 digits>[-n]/`.
//!
//! It is built beside its place and renamed, so a folder of that name always has all of its first files.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::checkpoint::{CheckpointChoice, Checkpoints};
use super::error::StoreError;
use super::files::{read_json, sync_dir, write_atomic, write_json};
use super::lines::copy_through_step;
use super::lock::RunLock;
use super::manifest::{ContinuedFrom, FORMAT, Manifest, SessionContext};
use super::summary::Summary;
use super::time;
use runner_files::remove_leftovers;
use runner_spec::plan::Plan;

pub const EXPERIMENT: &str = "experiment.yaml";
/// The template that the experiment file was rendered from, if it was.
pub const TEMPLATE: &str = "template.yaml.j2";
pub const RESOLVED: &str = "resolved.yaml";
pub const PLAN: &str = "plan.json";
pub const MANIFEST: &str = "manifest.json";
pub const METRICS: &str = "metrics.jsonl";
pub const SAMPLES: &str = "samples.jsonl";
/// Hashes of what each step computed, if they were asked for.
pub const TRACE: &str = "trace.jsonl";
/// The tokenizer, so that the run can be sampled from without its data.
pub const TOKENIZER: &str = "tokenizer.json";
pub const LOG: &str = "log.txt";
pub const SUMMARY: &str = "summary.json";
pub const CHECKPOINTS: &str = "checkpoints";
/// What each rank of a run with several wrote to its standard error.
pub const RANKS: &str = "ranks";

/// The file in `RANKS` of rank `rank`.
#[must_use]
pub fn rank_log(rank: usize) -> String {
    format!("rank-{rank}.log")
}

/// The prefix of the name of a run that is being removed; what a kill leaves of it is removed later.
pub const REMOVING: &str = ".removing-";

/// A run directory in the making, and how long one may take before it counts as left behind by a killed process.
pub const CREATING: &str = ".creating-";
const CREATING_AGE: Duration = Duration::from_secs(10);

/// The run, and which of its checkpoints, that a new run goes on from.
#[derive(Debug, Clone, Copy)]
pub struct ContinueFrom<'a> {
    /// Its run directory.
    pub path: &'a Path,
    /// Its plan.
    pub plan: &'a Plan,
    pub which: CheckpointChoice,
}

/// What a new run starts with.
#[derive(Debug)]
pub struct RunFiles<'a> {
    /// The experiment file as given.
    pub experiment: &'a str,
    pub resolved: &'a str,
    /// The template, if the file was rendered from one.
    pub template: Option<&'a str>,
    pub plan: &'a Plan,
    pub manifest: Manifest,
}

/// A run directory that this process holds.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    manifest: Manifest,
    _lock: RunLock,
}

/// What is there for a plan.
#[derive(Debug, Default)]
pub struct RunLookup {
    /// The newest run of the plan that stands for it, and its manifest.
    pub run: Option<(PathBuf, Manifest)>,
    /// Folders of the same name that are no readable runs, and why.
    pub broken: Vec<String>,
}

/// The folder name of the first run of a plan; later ones append `-2`, `-3`, …
#[must_use]
pub fn base_id(name: &str, plan_hash: &str) -> String {
    format!("{name}-{}", plan_hash.get(..8).unwrap_or(plan_hash))
}

/// The manifest of the run directory `path`.
///
/// # Errors
/// If it is missing, damaged or of another version.
pub fn manifest(path: &Path) -> Result<Manifest, StoreError> {
    let file = path.join(MANIFEST);
    let manifest: Manifest = read_json(&file)?;
    check_format(&file, manifest.format)?;
    Ok(manifest)
}

/// Whether the manifest `file` of version `format` is one that this program reads.
pub fn check_format(file: &Path, format: u32) -> Result<(), StoreError> {
    if format == FORMAT {
        return Ok(());
    }
    Err(StoreError::damaged(file, format!("format {format}, this version reads format {FORMAT}")))
}

/// The summary of the run directory `path`; `None` if it has none yet.
///
/// # Errors
/// If it is damaged.
pub fn summary(path: &Path) -> Result<Option<Summary>, StoreError> {
    match read_json(&path.join(SUMMARY)) {
        Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// What a folder of runs had in it at one moment.
#[derive(Debug, Default)]
pub struct RunsSnapshot {
    names: BTreeMap<String, PathBuf>,
}

impl RunsSnapshot {
    /// Of the folder of runs `root`; nothing if it cannot be read.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        let entries = fs::read_dir(root).into_iter().flatten().filter_map(Result::ok);
        let names = entries.filter_map(|e| Some((e.file_name().into_string().ok()?, e.path()))).collect();
        Self { names }
    }

    /// Looks for runs called `name` of the plan with this hash.
    #[must_use]
    pub fn find(&self, name: &str, plan_hash: &str) -> RunLookup {
        let mut found = RunLookup::default();
        for (_, path) in self.siblings(&base_id(name, plan_hash)) {
            match manifest(&path) {
                Ok(manifest) if manifest.plan_hash == plan_hash && manifest.stands_for_its_plan() => {
                    found.run = Some((path, manifest));
                }
                Ok(_) => {}
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

fn siblings(root: &Path, base: &str) -> Vec<(u64, PathBuf)> {
    RunsSnapshot::read(root).siblings(base)
}

/// All readable runs of `plan` in `root` under its experiment's name, oldest first, wherever they come from.
#[must_use]
pub fn all(root: &Path, plan: &Plan) -> Vec<(PathBuf, Manifest)> {
    let paths = siblings(root, &base_id(&plan.experiment_name, &plan.hash)).into_iter().map(|(_, path)| path);
    let readable = paths.filter_map(|path| manifest(&path).ok().map(|manifest| (path, manifest)));
    readable.filter(|(_, manifest)| manifest.plan_hash == plan.hash).collect()
}

/// Looks in `root` for runs of `plan` under its experiment's name.
#[must_use]
pub fn find(root: &Path, plan: &Plan) -> RunLookup {
    RunsSnapshot::read(root).find(&plan.experiment_name, &plan.hash)
}

impl RunDir {
    /// Creates the next run of `files.plan` in `root` and takes its lock.
    ///
    /// # Errors
    /// If the folder cannot be written; `Locked` never.
    pub fn create(root: &Path, files: RunFiles<'_>) -> Result<Self, StoreError> {
        Self::create_from(root, files, None)
    }

    /// As `create`, with the record of the run `from` up to one of its checkpoints, and with that checkpoint, as
    /// the new run's own; the manifest's `continued_from` says so. Whether the two runs are the same training is for the
    /// caller to know. Nothing is changed in `from`, which may be going on. After a kill at any moment the new run is there
    /// with all of that, or not at all.
    ///
    /// # Errors
    /// If there is no such checkpoint or it cannot be used; as `create`.
    pub fn create_continued(root: &Path, files: RunFiles<'_>, from: &ContinueFrom<'_>) -> Result<Self, StoreError> {
        Self::create_from(root, files, Some(from))
    }

    fn create_from(root: &Path, mut files: RunFiles<'_>, from: Option<&ContinueFrom<'_>>) -> Result<Self, StoreError> {
        fs::create_dir_all(root).map_err(StoreError::io("creating", root))?;
        remove_stale(root);
        let base = base_id(&files.plan.experiment_name, &files.plan.hash);
        let temporary = root.join(format!("{CREATING}{base}-{}-{:x}", std::process::id(), nonce()));
        fs::create_dir(&temporary).map_err(StoreError::io("creating", &temporary))?;
        let result = Self::fill(root, &base, &temporary, &mut files, from);
        if result.is_err() {
            let _ = fs::remove_dir_all(&temporary);
        }
        result
    }

    fn fill(
        root: &Path,
        base: &str,
        temporary: &Path,
        files: &mut RunFiles<'_>,
        from: Option<&ContinueFrom<'_>>,
    ) -> Result<Self, StoreError> {
        let lock = RunLock::take(temporary)?;
        write_atomic(&temporary.join(EXPERIMENT), files.experiment.as_bytes())?;
        write_atomic(&temporary.join(RESOLVED), files.resolved.as_bytes())?;
        if let Some(template) = files.template {
            write_atomic(&temporary.join(TEMPLATE), template.as_bytes())?;
        }
        write_json(&temporary.join(PLAN), files.plan)?;
        let checkpoints = temporary.join(CHECKPOINTS);
        fs::create_dir(&checkpoints).map_err(StoreError::io("creating", &checkpoints))?;
        if let Some(from) = from {
            files.manifest.continued_from = Some(seed(temporary, files.plan, from)?);
        }
        loop {
            let n = siblings(root, base).last().map_or(1, |(n, _)| n + 1);
            let id = if n == 1 { base.to_owned() } else { format!("{base}-{n}") };
            let path = root.join(&id);
            files.manifest.id = id;
            write_json(&temporary.join(MANIFEST), &files.manifest)?;
            match fs::rename(temporary, &path) {
                Ok(()) => {
                    sync_dir(root)?;
                    return Ok(Self { path, manifest: files.manifest.clone(), _lock: lock });
                }
                // Another process took the name in between.
                Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {}
                Err(e) => return Err(StoreError::io("creating", &path)(e)),
            }
        }
    }

    /// Takes the run directory `path` to go on with it, and removes what a killed process left unfinished in it.
    ///
    /// # Errors
    /// `Locked` if another process works on it; a damaged manifest.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let lock = RunLock::take(path)?;
        let manifest = manifest(path)?;
        remove_leftovers(path);
        Ok(Self { path: path.to_owned(), manifest, _lock: lock })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[must_use]
    pub fn id(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Notes that this process starts working on the run at `from_step`, and where.
    ///
    /// # Errors
    /// If the manifest cannot be written.
    pub fn begin(&mut self, from_step: u64, place: SessionContext) -> Result<(), StoreError> {
        self.manifest.begin(from_step, place, time::now());
        write_json(&self.path.join(MANIFEST), &self.manifest)
    }

    /// Notes that all ranks are started again, in the same session.
    ///
    /// # Errors
    /// If the manifest cannot be written.
    pub fn restart(&mut self) -> Result<(), StoreError> {
        self.manifest.restart();
        write_json(&self.path.join(MANIFEST), &self.manifest)
    }

    /// Puts `value` beside the record, as indented JSON, under `name`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn note(&self, name: &str, value: &impl serde::Serialize) -> Result<(), StoreError> {
        write_json(&self.path.join(name), value)
    }

    /// Puts a text beside the record under `name`, unless there is one.
    ///
    /// # Errors
    /// If it cannot be written, and those of `text`.
    pub fn keep<E: From<StoreError>>(&self, name: &str, text: impl FnOnce() -> Result<String, E>) -> Result<(), E> {
        let path = self.path.join(name);
        if path.exists() { Ok(()) } else { Ok(write_atomic(&path, text()?.as_bytes())?) }
    }

    /// Notes how this process's work ended: the summary first, then the manifest, which decides.
    ///
    /// # Errors
    /// If one of them cannot be written.
    pub fn finish(&mut self, summary: &Summary) -> Result<(), StoreError> {
        write_json(&self.path.join(SUMMARY), summary)?;
        self.manifest.end(summary.status, summary.error.clone(), summary.steps, time::now());
        write_json(&self.path.join(MANIFEST), &self.manifest)
    }
}

/// Gives the run directory in the making `to`, of a run of `ours`, the beginning of the run directory `from`.
fn seed(to: &Path, ours: &Plan, from: &ContinueFrom<'_>) -> Result<ContinuedFrom, StoreError> {
    let other = manifest(from.path)?;
    let checkpoints = Checkpoints::open(&to.join(CHECKPOINTS), &ours.hash, 1)?;
    let measured = same_validation(ours, from.plan);
    let (step, _) = checkpoints.adopt(&from.path.join(CHECKPOINTS), from.which, measured)?;
    for name in [METRICS, SAMPLES] {
        copy_through_step(&from.path.join(name), &to.join(name), step)?;
    }
    Ok(ContinuedFrom { id: other.id, step, plan_hash: other.plan_hash })
}

/// Whether validation losses of two plans are over the same rows.
fn same_validation(a: &Plan, b: &Plan) -> bool {
    let read = |plan: &Plan| plan.ranks.first().map(|r| (r.program.eval.loss, r.program.batch.micro_batch));
    a.data.validation == b.data.validation && read(a) == read(b)
}

/// Removes folders that processes killed while creating or removing a run left behind.
pub fn remove_stale(root: &Path) {
    for path in stale(root) {
        let _ = fs::remove_dir_all(path);
    }
}

/// Folders in `root` that a killed process left of a run that it was creating or removing: unlocked, and not brand-new.
pub fn stale(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root).into_iter().flatten().filter_map(Result::ok);
    let left = entries.filter(|entry| {
        let age = || entry.metadata().and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
        let name = entry.file_name();
        let name = name.to_string_lossy();
        (name.starts_with(CREATING) || name.starts_with(REMOVING))
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
            && age().is_some_and(|age| age > CREATING_AGE)
            && RunLock::is_free(&entry.path())
    });
    left.map(|entry| entry.path()).collect()
}

/// Tells apart folders that one process creates.
fn nonce() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
#[path = "run_dir_tests.rs"]
mod tests;
