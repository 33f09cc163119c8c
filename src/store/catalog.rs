//! The runs in a folder: listing them and finding one by name. Nothing is changed.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::error::StoreError;
use super::lock::RunLock;
use super::manifest::RunStatus;
use super::metrics::{EvalLine, MetricLine, TrainLine};
use super::run_dir::{self, MANIFEST, METRICS};
use super::summary::median;

/// The folder among the runs that holds sweeps, which are no runs.
pub const SWEEPS: &str = "sweeps";

/// How a run stands, as listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    Running,
    Done,
    /// Stopped on request or killed: `runner apply` goes on with it.
    Interrupted,
    Failed,
    /// A folder that cannot be read as a run.
    Broken,
}

impl Standing {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
            Self::Broken => "broken",
        }
    }
}

/// One line of the list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listed {
    pub id: String,
    pub path: PathBuf,
    pub status: Standing,
    /// Optimizer steps done, and of how many.
    pub step: u64,
    pub steps: u64,
    pub loss: Option<f64>,
    pub val_loss: Option<f64>,
    /// Median of the latest steps.
    pub tokens_per_second: Option<f64>,
    pub started: Option<String>,
    /// Why it failed or is broken.
    pub error: Option<String>,
}

/// The runs in `root`, oldest first, broken ones last. A folder that is not there has none.
///
/// # Errors
/// If the folder cannot be read.
pub fn list(root: &Path) -> Result<Vec<Listed>, StoreError> {
    let mut runs: Vec<Listed> = folders(root)?.iter().map(|path| describe(path)).collect();
    runs.sort_by(|a, b| {
        let key = |r: &Listed| (r.started.is_none(), r.started.clone(), r.id.clone());
        key(a).cmp(&key(b))
    });
    Ok(runs)
}

/// How the run in `path` stands.
#[must_use]
pub fn describe(path: &Path) -> Listed {
    let mut listed = Listed {
        id: id(path),
        path: path.to_owned(),
        status: Standing::Broken,
        step: 0,
        steps: 0,
        loss: None,
        val_loss: None,
        tokens_per_second: None,
        started: None,
        error: None,
    };
    let manifest = match run_dir::manifest(path) {
        Ok(manifest) => manifest,
        Err(error) => {
            listed.error = Some(error.to_string());
            return listed;
        }
    };
    listed.status = match manifest.status {
        RunStatus::Done => Standing::Done,
        RunStatus::Failed => Standing::Failed,
        RunStatus::Running if RunLock::is_held(path) => Standing::Running,
        RunStatus::Running | RunStatus::Interrupted => Standing::Interrupted,
    };
    listed.error = manifest.error;
    listed.steps = manifest.steps;
    listed.started = Some(manifest.started);
    let tail = Tail::read(&path.join(METRICS));
    if let Some(train) = &tail.train {
        (listed.step, listed.loss) = (train.step, train.loss);
    }
    listed.val_loss = tail.eval.and_then(|e| e.val_loss);
    listed.tokens_per_second = tail.tokens_per_second;
    listed
}

fn id(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Folders in `root` that are or were meant to be runs, by name.
fn folders(root: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::io("reading", root)(error)),
    };
    let mut out: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .filter(|e| !e.file_name().to_string_lossy().starts_with('.') && e.file_name() != SWEEPS)
        .map(|e| e.path())
        .filter(|path| path.is_dir())
        .collect();
    out.sort();
    Ok(out)
}

/// The run that `wanted` means: an id in `root`, a folder, or the unique beginning of an id.
///
/// # Errors
/// `NoSuchRun`, `Ambiguous` with the candidates, or a folder that cannot be read.
pub fn resolve(root: &Path, wanted: &str) -> Result<PathBuf, StoreError> {
    let as_path = Path::new(wanted);
    let named = as_path.components().count() == 1 && !wanted.starts_with('.') && !wanted.ends_with('/');
    if !named || wanted.is_empty() {
        if as_path.join(MANIFEST).is_file() {
            return Ok(as_path.to_owned());
        }
        let known = if as_path.is_dir() { format!(": that folder has no {MANIFEST}") } else { String::new() };
        return Err(StoreError::NoSuchRun { wanted: format!("{wanted:?}"), root: root.to_owned(), known });
    }
    let all = folders(root)?;
    if let Some(exact) = all.iter().find(|path| id(path) == wanted) {
        return Ok(exact.clone());
    }
    let matching: Vec<&PathBuf> = all.iter().filter(|path| id(path).starts_with(wanted)).collect();
    match matching.as_slice() {
        [one] => Ok((*one).clone()),
        [] if as_path.join(MANIFEST).is_file() => Ok(as_path.to_owned()),
        [] => {
            let ids: Vec<String> = all.iter().map(|path| id(path)).collect();
            Err(StoreError::NoSuchRun { wanted: wanted.to_owned(), root: root.to_owned(), known: known(wanted, &ids) })
        }
        many => Err(StoreError::Ambiguous {
            wanted: wanted.to_owned(),
            candidates: many.iter().map(|path| id(path)).collect(),
        }),
    }
}

/// What there is instead: the nearest names first, not all of many.
fn known(wanted: &str, ids: &[String]) -> String {
    const SHOWN: usize = 5;
    if ids.is_empty() {
        return ", which has none yet".to_owned();
    }
    let mut near: Vec<&String> = ids.iter().collect();
    near.sort_by(|a, b| strsim::jaro_winkler(wanted, b).total_cmp(&strsim::jaro_winkler(wanted, a)));
    let shown: Vec<&str> = near.iter().take(SHOWN).map(|s| s.as_str()).collect();
    let more = if ids.len() > SHOWN { format!(" and {} more", ids.len() - SHOWN) } else { String::new() };
    format!("; there are: {}{more}", shown.join(", "))
}

/// The end of a metrics file: enough for a list, however long the run.
#[derive(Default)]
struct Tail {
    train: Option<TrainLine>,
    eval: Option<EvalLine>,
    tokens_per_second: Option<f64>,
}

/// Bytes read from the end, about a thousand lines; an evaluation further back is looked for in up to all of the file in
/// steps of four times this.
const TAIL: u64 = 256 << 10;
const TAIL_MAX: u64 = 64 << 20;

impl Tail {
    fn read(path: &Path) -> Self {
        let mut window = TAIL;
        loop {
            let (tail, whole) = Self::window(path, window);
            if whole || tail.eval.is_some() || window >= TAIL_MAX {
                return tail;
            }
            window *= 4;
        }
    }

    /// What the last `window` bytes say, and whether that is the whole file.
    fn window(path: &Path, window: u64) -> (Self, bool) {
        let read = || -> std::io::Result<(Vec<u8>, bool)> {
            let mut file = File::open(path)?;
            let from = file.metadata()?.len().saturating_sub(window);
            file.seek(SeekFrom::Start(from))?;
            let mut bytes = Vec::new();
            file.take(window).read_to_end(&mut bytes)?;
            Ok((bytes, from == 0))
        };
        let Ok((bytes, whole)) = read() else { return (Self::default(), true) };
        let mut tail = Self::default();
        let mut rates = Vec::new();
        for line in bytes.split(|&b| b == b'\n') {
            match serde_json::from_slice(line) {
                Ok(MetricLine::Train(train)) => {
                    rates.extend(train.tokens_per_second);
                    tail.train = Some(train);
                }
                Ok(MetricLine::Eval(eval)) => tail.eval = Some(eval),
                Err(_) => {}
            }
        }
        tail.tokens_per_second = median(&mut rates);
        (tail, whole)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use crate::plan::tests::{compiled, experiment};
    use crate::store::manifest::Manifest;
    use crate::store::run_dir::{RunDir, RunFiles};

    fn create(root: &Path, name: &str, started: &str) -> RunDir {
        let mut plan = compiled(&experiment());
        name.clone_into(&mut plan.experiment_name);
        let manifest = Manifest::new(&plan, "exp.yaml".into(), vec![], started.to_owned());
        RunDir::create(root, RunFiles { experiment: "", resolved: "", template: None, plan: &plan, manifest }).unwrap()
    }

    #[test]
    fn runs_are_listed_by_age_and_broken_ones_last() {
        let root = tempfile::tempdir().unwrap();
        let later = create(root.path(), "b", "2026-01-02");
        drop(create(root.path(), "c", "2026-01-01"));
        let broken = root.path().join("a-broken");
        fs::create_dir(&broken).unwrap();
        fs::write(broken.join(MANIFEST), "{").unwrap();
        fs::create_dir(root.path().join(".creating-x")).unwrap();
        fs::write(root.path().join("notes.txt"), "").unwrap();
        fs::write(
            later.path().join(METRICS),
            "{\"kind\":\"train\",\"step\":1,\"loss\":3.0,\"tokens\":1,\"tokens_per_second\":10.0}\n\
             {\"kind\":\"eval\",\"step\":1,\"val_loss\":2.5}\n\
             {\"kind\":\"train\",\"step\":2,\"loss\":2.0,\"tokens\":1,\"tokens_per_second\":30.0}\n{\"ki",
        )
        .unwrap();
        let runs = list(root.path()).unwrap();
        let statuses: Vec<Standing> = runs.iter().map(|r| r.status).collect();
        assert_eq!(statuses, [Standing::Interrupted, Standing::Running, Standing::Broken]);
        assert_eq!((runs[1].step, runs[1].steps), (2, 100));
        assert_eq!((runs[1].val_loss, runs[1].tokens_per_second), (Some(2.5), Some(20.0)));
        assert!(runs[2].error.as_ref().unwrap().contains("manifest.json"));
        assert!(list(&root.path().join("none")).unwrap().is_empty());
    }

    #[test]
    fn an_evaluation_far_back_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(METRICS);
        let mut text = "{\"kind\":\"eval\",\"step\":1,\"val_loss\":2.5}\n".to_owned();
        for step in 0..20_000 {
            writeln!(text, "{{\"kind\":\"train\",\"step\":{step},\"loss\":2.0,\"tokens\":1}}").unwrap();
        }
        assert!(text.len() as u64 > 2 * TAIL);
        fs::write(&path, text).unwrap();
        let tail = Tail::read(&path);
        assert_eq!((tail.eval.unwrap().val_loss, tail.train.unwrap().step), (Some(2.5), 19_999));
    }

    #[test]
    fn names_mean_runs() {
        let root = tempfile::tempdir().unwrap();
        let first = create(root.path(), "shakespeare", "1").path().to_owned();
        let second = create(root.path(), "shakespeare", "2").path().to_owned();
        let other = create(root.path(), "stories", "3").path().to_owned();
        let find = |wanted: &str| resolve(root.path(), wanted);
        assert_eq!(find("st").unwrap(), other);
        assert_eq!(find(&id(&first)).unwrap(), first, "an id is its own, though another begins with it");
        assert_eq!(find(&id(&second)).unwrap(), second);
        assert_eq!(find(other.to_str().unwrap()).unwrap(), other, "a folder");
        let Err(StoreError::Ambiguous { candidates, .. }) = find("shake") else { panic!("ambiguous") };
        assert_eq!(candidates, [id(&first), id(&second)]);
        for nothing in ["x", "", "../x", root.path().to_str().unwrap()] {
            let error = find(nothing).unwrap_err();
            assert!(error.is_request() && matches!(error, StoreError::NoSuchRun { .. }), "{nothing}: {error}");
        }
        assert!(find("storeis").unwrap_err().to_string().contains("there are: stories-"), "nearest first");
    }
}
