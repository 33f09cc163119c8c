//! Lists the runs in a folder, and finds one by name, without changing anything.
//!
//! There is no index: the list is read from each run's own small files, so no two processes can disagree about it. For a run
//! that has ended these are the manifest and the summary; for one that trains, the manifest and the end of its metrics.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::{Serialize, Serializer};

use super::ancestry::parent;
use super::checkpoint;
use super::error::RecordError;
use super::files::file_name;
use super::lock::RunLock;
use super::manifest::{ContinuedFrom, Manifest, RunOrigin, RunStatus, SweepPoint};
use super::metrics_tail::MetricsTail;
pub use super::names::{SLURM_SCRIPT, SWEEP_FILE, SWEEP_POINTS, SWEEP_RECORD, SWEEPS};
use super::run_dir::{self, CHECKPOINTS, MANIFEST, METRICS};
use super::summary::Summary;
use super::tags;
use runner_files::if_present;
use runner_spec::event::Evaluation;
use runner_spec::format::quoted_line;
use runner_spec::measure::{Measured, serialize_with_nulls};
use runner_spec::safe_text::is_plain_line;
use runner_threads::threads::start_global_pool;

crate::named_enum! {
    /// The status of a run in the list. Unlike the recorded status, it knows whether a process works on the run.
    #[derive(Default)]
    pub enum ListedStatus {
        Running = "running",
        /// A scheduler will start it. This crate does not read queues, so its caller sets this status and the next one.
        Pending = "pending",
        /// A scheduler will start it again.
        Requeued = "requeued",
        Done = "done",
        /// Stopped on request or killed: `runner apply` resumes it.
        Interrupted = "interrupted",
        /// A point of a finished sweep that early stopping ended. This crate does not read sweeps, so its caller sets this status.
        Stopped = "stopped",
        Failed = "failed",
        /// The folder cannot be read as a run.
        #[default]
        Broken = "broken",
    }
}

impl ListedStatus {
    /// The status in the words of the list: those of [`Self::name`], except `stopped early`.
    #[must_use]
    pub fn description(self) -> &'static str {
        if self == Self::Stopped { "stopped early" } else { self.name() }
    }
}

/// A run in the list.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ListedRun {
    pub id: String,
    /// The name of the experiment.
    pub name: Option<String>,
    #[serde(serialize_with = "serialize_path")]
    pub path: PathBuf,
    pub status: ListedStatus,
    /// Optimizer steps that are done, inherited steps included, and steps that are planned.
    pub step: u64,
    pub steps: u64,
    /// The steps that the run did itself.
    pub own_steps: u64,
    /// Valid tokens that the model has seen, and the part of the run itself; absent while it trains.
    pub tokens: Option<u64>,
    pub own_tokens: Option<u64>,
    /// Seconds of its training, from the summary, and the part of the run itself.
    pub seconds: Option<f64>,
    pub own_seconds: Option<f64>,
    pub loss: Option<f64>,
    /// The last evaluation, and the lowest validation loss, which is absent while the run trains.
    #[serde(flatten, serialize_with = "serialize_with_nulls")]
    pub last_eval: Measured,
    pub best_val_loss: Option<f64>,
    /// Median over the steps of the run; over the latest steps of a run that trains or was killed.
    pub tokens_per_second: Option<f64>,
    pub started: Option<String>,
    pub ended: Option<String>,
    pub tags: Vec<String>,
    pub sweep: Option<SweepPoint>,
    pub continued_from: Option<ContinuedFrom>,
    pub origin: Option<RunOrigin>,
    /// The scheduler's number of the job that trains it or will train it.
    pub job: Option<String>,
    /// Why it failed or is broken.
    pub error: Option<String>,
}

/// Lists the runs in `root`, oldest first, broken ones last. A missing folder has none.
///
/// # Errors
/// If the folder cannot be read.
pub fn list(root: &Path) -> Result<Vec<ListedRun>, RecordError> {
    start_global_pool().map_err(RecordError::Threads)?;
    let mut runs: Vec<ListedRun> = run_folders(root)?.par_iter().map(|path| describe(path)).collect();
    runs.sort_by(|a, b| {
        let key = |r: &ListedRun| (r.started.is_none(), r.started.clone(), r.id.clone());
        key(a).cmp(&key(b))
    });
    Ok(runs)
}

/// Describes the run in `path` for the list.
pub fn describe(path: &Path) -> ListedRun {
    let mut listed = ListedRun { id: file_name(path), path: path.to_owned(), ..ListedRun::default() };
    let manifest = match run_dir::read_manifest(path) {
        Ok(manifest) => manifest,
        Err(error) => {
            listed.error = Some(error.to_string());
            return listed;
        }
    };
    listed.status = match manifest.status {
        RunStatus::Done => ListedStatus::Done,
        RunStatus::Failed => ListedStatus::Failed,
        RunStatus::Running if RunLock::is_held(path) => ListedStatus::Running,
        RunStatus::Running | RunStatus::Interrupted => ListedStatus::Interrupted,
    };
    // Without a readable summary, the metrics give the same numbers.
    let summary = run_dir::read_summary(path).ok().flatten();
    match summary.filter(|summary| summary.is_current(manifest.status)) {
        Some(summary) => listed.add_summary(summary),
        None => listed.add_metrics(&manifest),
    }
    listed.own_steps = listed.step.saturating_sub(manifest.inherited_steps());
    listed.name = Some(manifest.name);
    listed.error = manifest.error;
    listed.steps = manifest.steps;
    (listed.started, listed.ended) = (Some(manifest.started), manifest.ended);
    (listed.sweep, listed.origin) = (manifest.sweep, manifest.origin);
    listed.continued_from = manifest.continued_from.map(|from| ContinuedFrom { sessions: Vec::new(), ..from });
    // A run with unreadable tags is not broken: `runner runs tag` reports what is wrong with them.
    listed.tags = tags::read(path).unwrap_or_default();
    listed
}

impl ListedRun {
    fn add_summary(&mut self, summary: Summary) {
        self.step = summary.steps;
        let own = summary.own;
        (self.tokens, self.own_tokens) = (Some(summary.tokens), Some(own.tokens));
        (self.seconds, self.own_seconds) = (Some(summary.wall_seconds), Some(own.wall_seconds));
        self.loss = summary.final_train_loss;
        self.last_eval = summary.last_eval.map(|last| last.measured).unwrap_or_default();
        self.best_val_loss = summary.best_eval.as_ref().and_then(Evaluation::val_loss);
        self.tokens_per_second = summary.medians.tokens_per_second;
    }

    /// Adds what the metrics record of a run without a current summary.
    fn add_metrics(&mut self, manifest: &Manifest) {
        let tail = MetricsTail::read(&self.path.join(METRICS));
        if self.status != ListedStatus::Running {
            self.add_amounts(manifest);
        }
        if let Some(train) = &tail.train {
            (self.step, self.loss) = (train.step, train.loss);
        }
        self.last_eval = tail.eval.map(|last| last.measured).unwrap_or_default();
        self.tokens_per_second = tail.tokens_per_second;
    }

    /// Adds what only all of the metrics show, of a run that no process works on. They may lack lines.
    fn add_amounts(&mut self, manifest: &Manifest) {
        let checkpoints = self.path.join(CHECKPOINTS);
        let saved =
            checkpoint::newest_step(&checkpoints).and_then(|step| checkpoint::recorded_position(&checkpoints, step));
        let (metrics, began) = (self.path.join(METRICS), manifest.newest_layout_began());
        if let Ok(numbers) = Summary::from_metrics(&metrics, manifest.continued_from.as_ref(), began, saved.as_ref()) {
            (self.tokens, self.own_tokens) = (Some(numbers.tokens), Some(numbers.own.tokens));
            self.best_val_loss = numbers.best_eval.as_ref().and_then(Evaluation::val_loss);
        }
    }
}

/// Serializes `path` as text. A path that is not UTF-8 must not fail the whole list.
///
/// # Errors
/// Those of `serializer`.
pub fn serialize_path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// The folders in `root` that are or were meant to be runs, by name. Empty if there is no such folder. Names are shown, and this program gives
/// none with control characters: folders with such names are left out.
///
/// # Errors
/// If the folder cannot be read.
pub fn run_folders(root: &Path) -> Result<Vec<PathBuf>, RecordError> {
    let entries = fs::read_dir(root).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = if_present(entries).map_err(RecordError::io("reading", root))?;
    let mut out: Vec<PathBuf> = entries
        .into_iter()
        .flatten()
        .filter(|e| {
            let name = e.file_name();
            !name.to_string_lossy().starts_with('.') && name != SWEEPS && is_plain_line(&name.to_string_lossy())
        })
        // A directory entry knows its type; only links have to be followed.
        .filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir() || kind.is_symlink() && e.path().is_dir()))
        .map(|e| e.path())
        .collect();
    out.sort();
    Ok(out)
}

/// Finds the run that `wanted` names: by its id in `root`, a folder, the name of its experiment, or the unique prefix of an id. A run
/// is preferred to its reproductions, whose ids begin alike. A run of this name is preferred to points of a sweep, which have the name of
/// the sweep's base, and to runs whose names only begin with it.
///
/// # Errors
/// `NoSuchRun`, `NotARun` for a path of something else, `Ambiguous` with the candidates, or a folder that cannot be read.
pub fn resolve(root: &Path, wanted: &str) -> Result<PathBuf, RecordError> {
    let as_path = Path::new(wanted);
    let named = as_path.components().count() == 1 && !wanted.starts_with('.') && !wanted.ends_with('/');
    if !named || wanted.is_empty() {
        if as_path.join(MANIFEST).is_file() {
            return Ok(as_path.to_owned());
        }
        let message = describe_other_path(as_path).unwrap_or_else(|| "there is no such folder".to_owned());
        return Err(RecordError::NotARun { wanted: wanted.to_owned(), message });
    }
    let all = run_folders(root)?;
    if let Some(path) = all.iter().find(|path| file_name(path) == wanted) {
        return Ok(path.clone());
    }
    let mut matching: Vec<&PathBuf> = all.iter().filter(|path| file_name(path).starts_with(wanted)).collect();
    let mut manifests: Vec<Option<Manifest>> = Vec::new();
    if matching.len() > 1 {
        let mut found: Vec<_> = matching.into_iter().map(|path| (path, run_dir::read_manifest(path).ok())).collect();
        prefer_runs(&mut found, wanted);
        (matching, manifests) = found.into_iter().unzip();
    }
    match matching.as_slice() {
        [one] => Ok((*one).clone()),
        [] if as_path.join(MANIFEST).is_file() => Ok(as_path.to_owned()),
        [] => {
            let wanted = wanted.to_owned();
            let others = [root.join(SWEEPS).join(&wanted), as_path.to_owned()];
            if let Some(message) = others.iter().find_map(|path| describe_other_path(path)) {
                return Err(RecordError::NotARun { wanted, message });
            }
            let ids: Vec<String> = all.iter().map(|path| file_name(path)).collect();
            let known = describe_alternatives(&wanted, &ids);
            Err(RecordError::NoSuchRun { wanted, root: root.to_owned(), known })
        }
        many => {
            let candidates =
                many.iter().zip(&manifests).map(|(path, manifest)| describe_candidate(path, manifest.as_ref()));
            Err(RecordError::Ambiguous { wanted: wanted.to_owned(), candidates: candidates.collect() })
        }
    }
}

/// Removes from `found`, whose ids begin with `wanted`, the runs to which others are preferred. Runs of an experiment whose whole name is
/// `wanted` are preferred to others, among them runs that are not points of a sweep, and runs to their reproductions.
fn prefer_runs(found: &mut Vec<(&PathBuf, Option<Manifest>)>, wanted: &str) {
    let ids: Vec<String> = found.iter().map(|(path, _)| file_name(path)).collect();
    found.retain(|(_, manifest)| match manifest.as_ref().and_then(|manifest| manifest.origin.as_ref()) {
        Some(RunOrigin::Reproduction { id, .. }) => !ids.contains(id),
        _ => true,
    });
    let has_name = |manifest: &Option<Manifest>| manifest.as_ref().is_some_and(|manifest| manifest.name == wanted);
    let is_no_point = |manifest: &Option<Manifest>| manifest.as_ref().is_some_and(|manifest| manifest.sweep.is_none());
    if found.iter().any(|(_, manifest)| has_name(manifest)) {
        found.retain(|(_, manifest)| has_name(manifest));
        if found.iter().any(|(_, manifest)| is_no_point(manifest)) {
            found.retain(|(_, manifest)| is_no_point(manifest));
        }
    }
}

/// Describes `path`, which is not a run, and what to name instead; `None` if it does not exist.
fn describe_other_path(path: &Path) -> Option<String> {
    path.symlink_metadata().ok()?;
    let shown = path.display();
    let is_run = |folder: &Path| folder.join(MANIFEST).is_file();
    Some(if let Some(run) = path.ancestors().skip(1).find(|folder| is_run(folder)) {
        format!("it is part of the run {}; name the run", run.display())
    } else if path.join(SWEEP_RECORD).is_file() {
        let id = file_name(path);
        format!("it is a sweep; `runner runs {id}` lists its runs, and `runner sweep results {shown}` their results")
    } else if !path.is_dir() {
        "it is a file, but a run is a folder".to_owned()
    } else if let Some(run) = run_folders(path).ok().and_then(|runs| runs.into_iter().find(|run| is_run(run))) {
        let run = quoted_line(&run.to_string_lossy());
        format!("it is a folder of runs; name one of them, such as {run}, or use `--runs {shown}`")
    } else {
        format!("it is a folder without {MANIFEST}")
    })
}

/// The id of the run in `path`, with its point of a sweep, or the run that it was made from: other candidates may have the same name.
fn describe_candidate(path: &Path, manifest: Option<&Manifest>) -> String {
    let point = manifest.and_then(|manifest| manifest.sweep.as_ref());
    let point = point.map(|point| format!("point {} of {}", point.point, point.id));
    let parent = manifest.and_then(|manifest| parent(manifest.origin.as_ref(), manifest.continued_from.as_ref()));
    let what = point.or_else(|| Some(parent?.describe()));
    format!("{}{}", file_name(path), what.map_or_else(String::new, |what| format!(" ({what})")))
}

/// Finds the runs that `wanted` names, in that order. A run named twice, however it is spelled, is found once.
///
/// # Errors
/// Those of [`resolve`].
pub fn resolve_all(root: &Path, wanted: &[impl AsRef<str>]) -> Result<Vec<PathBuf>, RecordError> {
    let mut seen = HashSet::new();
    let mut out = Vec::new();
    for wanted in wanted {
        let path = resolve(root, wanted.as_ref())?;
        if seen.insert(fs::canonicalize(&path).unwrap_or_else(|_| path.clone())) {
            out.push(path);
        }
    }
    Ok(out)
}

/// Lists the ids that are nearest to `wanted`, for an error message.
fn describe_alternatives(wanted: &str, ids: &[String]) -> String {
    const SHOWN: usize = 5;
    if ids.is_empty() {
        return ", which has none yet".to_owned();
    }
    let mut near: Vec<&String> = ids.iter().collect();
    near.sort_by(|a, b| strsim::jaro_winkler(wanted, b).total_cmp(&strsim::jaro_winkler(wanted, a)));
    let shown: Vec<String> = near.iter().take(SHOWN).map(|id| quoted_line(id)).collect();
    let more = if ids.len() > SHOWN { format!(" and {} more", ids.len() - SHOWN) } else { String::new() };
    format!("; there are: {}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use runner_spec::error::{Classified as _, ErrorKind};

    use super::*;
    use crate::files::{resealed, write_sealed_json};
    use crate::manifest::SweepPoint;
    use crate::run_dir::{RunDir, RunFiles, SUMMARY};
    use runner_plan::testing::{compiled, experiment};

    fn create(root: &Path, name: &str, started: &str) -> RunDir {
        let mut plan = compiled(&experiment());
        name.clone_into(&mut plan.experiment_name);
        let manifest = Manifest::new(&plan, "exp.yaml".into(), vec![], started.to_owned());
        RunDir::create(
            root,
            RunFiles {
                experiment: "",
                resolved: "",
                template: None,
                merged: None,
                is_private: false,
                plan: &plan,
                manifest,
            },
            None,
        )
        .unwrap()
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
        fs::create_dir_all(root.path().join(SWEEPS).join("lr")).unwrap();
        fs::write(root.path().join("notes.txt"), "").unwrap();
        fs::write(
            later.path().join(METRICS),
            "{\"kind\":\"train\",\"step\":1,\"loss\":3.0,\"tokens\":1,\"tokens_per_second\":10.0}\n\
             {\"kind\":\"eval\",\"step\":1,\"val_loss\":2.5}\n\
             {\"kind\":\"train\",\"step\":2,\"loss\":2.0,\"tokens\":1,\"tokens_per_second\":30.0}\n{\"ki",
        )
        .unwrap();
        let runs = list(root.path()).unwrap();
        let statuses: Vec<ListedStatus> = runs.iter().map(|r| r.status).collect();
        assert_eq!(statuses, [ListedStatus::Interrupted, ListedStatus::Running, ListedStatus::Broken]);
        assert_eq!((runs[1].step, runs[1].steps), (2, 100));
        assert_eq!((runs[1].last_eval.val_loss(), runs[1].tokens_per_second), (Some(2.5), Some(20.0)));
        // Once its process was killed, what it recorded counts.
        let killed = later.path().to_owned();
        drop(later);
        let killed = describe(&killed);
        assert_eq!(
            (killed.status, killed.tokens, killed.best_val_loss),
            (ListedStatus::Interrupted, Some(2), Some(2.5))
        );
        assert!(runs[2].error.as_ref().unwrap().contains("manifest.json"));
        assert!(list(&root.path().join("none")).unwrap().is_empty());
    }

    #[test]
    fn a_summary_counts_while_it_is_the_newest_record() {
        let root = tempfile::tempdir().unwrap();
        let run = create(root.path(), "a", "2026-01-02");
        fs::write(run.path().join(METRICS), "{\"kind\":\"train\",\"step\":7,\"loss\":2.0,\"tokens\":1}\n").unwrap();
        let summary = "{\"status\":\"done\",\"steps\":100,\"tokens\":5,\"wall_seconds\":1.5,\"own_steps\":100,\"own_tokens\":5,\
                       \"own_wall_seconds\":1.5,\"final_train_loss\":1.25,\
                       \"id\":\"a\",\"steps_total\":100,\"planned_memory_bytes\":0,\
                       \"last_eval\":{\"step\":100,\"val_loss\":1.5},\"best_eval\":{\"step\":90,\"val_loss\":1.4},\
                       \"medians\":{\"tokens_per_second\":9.0}}";
        let summary: serde_json::Value = serde_json::from_str(summary).unwrap();
        write_sealed_json(&run.path().join(SUMMARY), &summary).unwrap();
        assert_eq!(describe(run.path()).step, 7, "the manifest says that the run is at work");
        let text = fs::read_to_string(run.path().join(MANIFEST)).unwrap();
        let text = text.replace("\"status\": \"running\"", "\"status\": \"done\"");
        fs::write(run.path().join(MANIFEST), &text).unwrap();
        let listed = describe(run.path());
        assert!(
            listed.status == ListedStatus::Broken && listed.error.unwrap().contains("changed after it was written")
        );
        fs::write(run.path().join(MANIFEST), resealed(&text)).unwrap();
        let listed = describe(run.path());
        assert_eq!((listed.status, listed.step, listed.loss), (ListedStatus::Done, 100, Some(1.25)));
        assert_eq!((listed.last_eval.val_loss(), listed.best_val_loss), (Some(1.5), Some(1.4)));
        assert_eq!((listed.tokens_per_second, listed.tokens, listed.seconds), (Some(9.0), Some(5), Some(1.5)));
        assert_eq!((listed.own_steps, listed.own_tokens, listed.own_seconds), (100, Some(5), Some(1.5)));
        fs::write(run.path().join(SUMMARY), "{").unwrap();
        assert_eq!(describe(run.path()).step, 7, "a damaged summary is none");
    }

    #[test]
    fn names_mean_runs() {
        let root = tempfile::tempdir().unwrap();
        let first = create(root.path(), "shakespeare", "1").path().to_owned();
        let second = create(root.path(), "shakespeare", "2").path().to_owned();
        let other = create(root.path(), "stories", "3").path().to_owned();
        let find = |wanted: &str| resolve(root.path(), wanted);
        assert_eq!(find("st").unwrap(), other);
        assert_eq!(find(&file_name(&first)).unwrap(), first, "an id is its own, though another begins with it");
        assert_eq!(find(&file_name(&second)).unwrap(), second);
        assert_eq!(find(other.to_str().unwrap()).unwrap(), other, "a folder");
        let Err(RecordError::Ambiguous { candidates, .. }) = find("shake") else { panic!("ambiguous") };
        assert_eq!(candidates, [file_name(&first), file_name(&second)]);
        let spelled = [
            file_name(&other),
            format!("{}/../{}/", other.display(), file_name(&other)),
            file_name(&first),
            "st".to_owned(),
        ];
        assert_eq!(resolve_all(root.path(), &spelled).unwrap(), [other.clone(), first.clone()], "each once");
        assert!(resolve_all(root.path(), &["st", "x"]).is_err());
        let shake = create(root.path(), "shake", "4").path().to_owned();
        assert_eq!(find("shake").unwrap(), shake, "the whole name of an experiment comes before a longer name");
        assert!(matches!(find("shak"), Err(RecordError::Ambiguous { .. })));
        fs::remove_dir_all(shake).unwrap();
        for nothing in ["x", "", "../x", root.path().to_str().unwrap()] {
            let error = find(nothing).unwrap_err();
            let is_wanted = matches!(error, RecordError::NoSuchRun { .. } | RecordError::NotARun { .. });
            assert!(error.kind() == ErrorKind::Request && is_wanted, "{nothing}: {error}");
        }
        let message = |path: PathBuf| find(path.to_str().unwrap()).unwrap_err().to_string();
        assert!(message(first.join(MANIFEST)).contains("it is part of the run"));
        assert!(message(root.path().to_owned()).contains("a folder of runs; name one of them"));
        // The reproduction of a run does not hide it, and is found once that is gone.
        let mut plan = compiled(&experiment());
        "stories".clone_into(&mut plan.experiment_name);
        let origin = RunOrigin::Reproduction { id: file_name(&other), plan_hash: plan.hash.clone(), state_hash: None };
        let manifest =
            Manifest { origin: Some(origin), ..Manifest::new(&plan, "exp.yaml".into(), vec![], "4".to_owned()) };
        let files = RunFiles {
            experiment: "",
            resolved: "",
            template: None,
            merged: None,
            is_private: false,
            plan: &plan,
            manifest,
        };
        let copy = RunDir::create(root.path(), files, None).unwrap().path().to_owned();
        assert_eq!(find("st").unwrap(), other);
        assert_eq!(find(&file_name(&copy)).unwrap(), copy);
        assert!(find("storeis").unwrap_err().to_string().contains("there are: stories-"), "nearest first");
        fs::remove_dir_all(&other).unwrap();
        assert_eq!(find("st").unwrap(), copy);
    }

    #[test]
    fn the_reproduction_of_a_point_does_not_hide_its_group() {
        let mut plan = compiled(&experiment());
        "g".clone_into(&mut plan.experiment_name);
        let manifest = || Manifest::new(&plan, "exp.yaml".into(), vec![], "4".to_owned());
        let point = |point| Manifest { sweep: Some(SweepPoint { id: "g-12345678".to_owned(), point }), ..manifest() };
        let origin = RunOrigin::Reproduction { id: "g-1".to_owned(), plan_hash: plan.hash.clone(), state_hash: None };
        let copy = Manifest { origin: Some(origin), ..manifest() };
        let paths = ["g-1", "g-2", "g-1-2"].map(PathBuf::from);
        let mut found: Vec<_> = paths.iter().zip([point(1), point(2), copy].map(Some)).collect();
        prefer_runs(&mut found, "g");
        let left: Vec<&PathBuf> = found.into_iter().map(|(path, _)| path).collect();
        assert_eq!(left, [&paths[0], &paths[1]]);
    }
}
