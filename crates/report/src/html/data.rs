//! What the page is given: everything it shows of runs, read from their directories and nowhere else.
//!
//! A run is shown as far as it can be read: what is missing or damaged is said in `problems`.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::curves::{self, Curves};
use super::error::ReportError;
use super::files;
use super::gantt::{self, Gantt};
use super::memory::{self, Memory};
use super::samples::{self, Samples};
use super::settings::{Difference, differences};
use super::sweep::{self, SweepTable};
use runner_spec::plan::Plan;
use runner_store::catalog;
use runner_store::catalog::ListedStatus;
use runner_store::manifest::Manifest;
use runner_store::run_dir;
use runner_store::run_dir::{CHECKPOINTS, METRICS, PLAN, RESOLVED, SAMPLES};
use runner_store::{checkpoint, time, timeline};

/// Version of the data: a served page reloads itself when it changes.
pub const FORMAT: u32 = 1;

/// Points of a curve, of all runs together and of one.
const POINTS: usize = 8000;
const POINTS_RUN: (usize, usize) = (120, 2000);
/// Checkpoints that are listed.
const MOST_CHECKPOINTS: usize = 200;

/// What is to be reported.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Run directories, in the order shown.
    pub runs: Vec<PathBuf>,
    /// The folder of a sweep, whose points' runs are shown, too.
    pub sweep: Option<PathBuf>,
    pub title: Option<String>,
}

/// The whole page.
#[derive(Debug, Clone, Serialize)]
pub struct PageData {
    pub format: u32,
    pub title: String,
    /// RFC 3339, UTC.
    pub made: String,
    /// Of this program.
    pub version: &'static str,
    pub runs: Vec<RunData>,
    /// Settings in which the runs differ, each with a value per run.
    pub differences: Vec<Difference>,
    pub sweep: Option<SweepTable>,
}

impl PageData {
    /// Whether a run may still change.
    #[must_use]
    pub fn running(&self) -> bool {
        self.runs.iter().any(|run| run.status == ListedStatus::Running)
    }
}

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct RunData {
    pub id: String,
    pub status: ListedStatus,
    /// Why it failed.
    pub error: Option<String>,
    /// What could not be read.
    pub problems: Vec<String>,
    /// Steps to do; those done are in `curves`.
    pub steps: u64,
    pub wall_seconds: Option<f64>,
    pub final_hash: Option<String>,
    /// The most memory resident and the planned, of all ranks.
    pub peak_rss: Option<u64>,
    /// `null` members: the plan cannot be read.
    #[serde(serialize_with = "shared")]
    pub plan: Arc<Planned>,
    pub memory: Memory,
    pub curves: Curves,
    pub samples: Samples,
    pub measured_timeline: Option<Gantt>,
    pub checkpoints: Vec<Checkpoint>,
    pub manifest: Option<Manifest>,
    pub yaml: Option<String>,
}

/// What the plan says; it never changes.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Planned {
    pub parameters: Option<u64>,
    pub tokens_per_step: Option<u64>,
    pub flops_per_step: Option<f64>,
    pub memory_bytes: Option<u64>,
    pub forecast: Option<ForecastData>,
    pub timeline: Option<Gantt>,
    pub notes: Vec<String>,
    #[serde(skip)]
    plan: Option<Plan>,
}

/// The plan's forecast in numbers.
#[derive(Debug, Clone, Serialize)]
pub struct ForecastData {
    pub step_ms: f64,
    pub tokens_per_second: f64,
    pub mfu: Option<f64>,
    pub basis: runner_spec::forecast::Basis,
}

/// One checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Checkpoint {
    pub step: u64,
    /// Of all its files.
    pub bytes: u64,
    pub val_loss: Option<f64>,
    pub weights_hash: Option<String>,
    /// Whether its validation loss is the lowest of those kept.
    pub best: bool,
}

/// What a checkpoint's `state.json` says that is shown here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StateFile {
    val_loss: Option<f64>,
    weights_hash: Option<String>,
}

/// Length and time of a plan's file, and what was read from it.
type Remembered = (Stamp, Arc<Planned>);

/// Length and time of a file.
type Stamp = (u64, SystemTime);

/// What was read from a run's metrics and samples, and of which these were.
#[derive(Debug)]
struct Recorded {
    stamps: (Option<Stamp>, Option<Stamp>),
    /// Steps of another run, and points of a curve.
    shape: (u64, usize),
    curves: Curves,
    samples: Samples,
}

/// Reads runs; remembers their plans, which are large and never change, and the records of those that stand still.
#[derive(Debug, Default)]
pub struct Reader {
    plans: HashMap<PathBuf, Remembered>,
    records: HashMap<PathBuf, Recorded>,
}

/// Reads what `request` asks for, once.
///
/// # Errors
/// If there is no such sweep.
pub fn read(request: &Request) -> Result<PageData, ReportError> {
    Reader::default().read(request)
}

impl Reader {
    /// Reads what `request` asks for.
    ///
    /// # Errors
    /// If there is no such sweep.
    pub fn read(&mut self, request: &Request) -> Result<PageData, ReportError> {
        let mut paths = request.runs.clone();
        let sweep = match &request.sweep {
            Some(folder) => {
                let (table, runs) = sweep::load(folder)?;
                let real = |path: &PathBuf| fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                let given: Vec<PathBuf> = request.runs.iter().map(real).collect();
                paths.extend(runs.into_iter().filter(|run| !given.contains(&real(run))));
                Some(table)
            }
            None => None,
        };
        let most = (POINTS / paths.len().max(1)).clamp(POINTS_RUN.0, POINTS_RUN.1);
        let runs: Vec<RunData> = paths.iter().map(|path| self.run(path, most)).collect();
        let files: Vec<Option<&str>> = runs.iter().map(|run| run.yaml.as_deref()).collect();
        let title = request.title.clone().unwrap_or_else(|| title(&runs, sweep.as_ref()));
        Ok(PageData {
            format: FORMAT,
            title,
            made: time::now(),
            version: env!("CARGO_PKG_VERSION"),
            differences: differences(&files),
            runs,
            sweep,
        })
    }

    /// The run in `path`, with at most `most` points a curve.
    fn run(&mut self, path: &Path, most: usize) -> RunData {
        let listed = catalog::describe(path);
        let mut problems = Vec::new();
        let manifest = run_dir::manifest(path).map_err(|error| problems.push(error.to_string())).ok();
        let summary = run_dir::summary(path).unwrap_or_else(|error| {
            problems.push(error.to_string());
            None
        });
        let planned = self.planned(path).unwrap_or_else(|problem| {
            problems.push(problem);
            Arc::default()
        });
        let skip = manifest.as_ref().and_then(|m| m.continued_from.as_ref()).map_or(0, |from| from.step);
        let (curves, samples) = self.record(path, (skip, most), &mut problems);
        let yaml = files::text(&path.join(RESOLVED)).unwrap_or_else(|problem| {
            problems.push(problem);
            None
        });
        let watched = timeline::read(path).unwrap_or_else(|error| {
            problems.push(error.to_string());
            None
        });
        let held = watched.as_ref().map_or(&[][..], |step| &step.memory);
        let memory = planned.plan.as_ref().map(|plan| memory::memory(plan, summary.as_ref(), held));
        // A summary from before the run went on says nothing true of it.
        let summary = summary.filter(|s| manifest.as_ref().is_none_or(|m| m.status == s.status));
        RunData {
            id: listed.id,
            status: listed.status,
            error: listed.error,
            problems,
            steps: listed.steps,
            wall_seconds: summary.as_ref().map(|s| s.wall_seconds),
            final_hash: summary.as_ref().and_then(|s| s.final_hash.clone()),
            peak_rss: summary.as_ref().and_then(|s| s.peak_rss_bytes),
            memory: memory.unwrap_or_default(),
            curves,
            samples,
            measured_timeline: watched.and_then(|step| gantt::measured(&step, planned.plan.as_ref())),
            plan: planned,
            checkpoints: checkpoints(&path.join(CHECKPOINTS)),
            manifest,
            yaml,
        }
    }

    /// Curves and samples of the run in `path`, read again if one of the files is another one.
    fn record(&mut self, path: &Path, shape: (u64, usize), problems: &mut Vec<String>) -> (Curves, Samples) {
        let (metrics, samples) = (path.join(METRICS), path.join(SAMPLES));
        // Taken before reading: what is written meanwhile makes another stamp.
        let stamps = (files::stamp(&metrics), files::stamp(&samples));
        if let Some(known) = self.records.get(path)
            && (known.stamps, known.shape) == (stamps, shape)
        {
            return (known.curves.clone(), known.samples.clone());
        }
        let before = problems.len();
        let curves = curves::read(&metrics, shape.0, shape.1).unwrap_or_else(|error| {
            problems.push(error.to_string());
            Curves::default()
        });
        let samples = samples::read(&samples).unwrap_or_else(|error| {
            problems.push(error.to_string());
            Samples::default()
        });
        // What could not be read is said each time.
        if problems.len() == before {
            let recorded = Recorded { stamps, shape, curves: curves.clone(), samples: samples.clone() };
            self.records.insert(path.to_owned(), recorded);
        }
        (curves, samples)
    }

    /// What the plan of the run in `path` says, read again if the file is another one.
    fn planned(&mut self, path: &Path) -> Result<Arc<Planned>, String> {
        let stamp = files::stamp(&path.join(PLAN));
        if let (Some(stamp), Some((known, planned))) = (stamp, self.plans.get(path))
            && *known == stamp
        {
            return Ok(planned.clone());
        }
        let plan = runner_lab::stored_plan::read(path).map_err(|error| error.to_string())?;
        let planned = Arc::new(Planned::new(plan));
        if let Some(stamp) = stamp {
            self.plans.insert(path.to_owned(), (stamp, planned.clone()));
        }
        Ok(planned)
    }
}

impl Planned {
    fn new(plan: Plan) -> Self {
        let forecast = plan.forecast.as_ref().map(|f| ForecastData {
            step_ms: 1e3 * f.step_seconds,
            tokens_per_second: f.tokens_per_second,
            mfu: f.mfu,
            basis: f.basis,
        });
        Self {
            parameters: Some(plan.totals.parameters),
            tokens_per_step: Some(plan.totals.tokens_per_step),
            flops_per_step: Some(plan.totals.flops_per_step),
            memory_bytes: Some(plan.ranks.iter().fold(0, |sum, r| r.memory.total().saturating_add(sum))),
            forecast,
            timeline: gantt::planned(&plan),
            notes: plan.notes.clone(),
            plan: Some(plan),
        }
    }
}

fn shared<S: serde::Serializer>(plan: &Arc<Planned>, to: S) -> Result<S::Ok, S::Error> {
    plan.as_ref().serialize(to)
}

fn title(runs: &[RunData], sweep: Option<&SweepTable>) -> String {
    match (sweep, runs) {
        (Some(sweep), _) => format!("Sweep {}", sweep.id),
        (None, [one]) => one.id.clone(),
        (None, runs) => format!("{} runs", runs.len()),
    }
}

/// The checkpoints in `folder`, oldest first; of very many the newest.
fn checkpoints(folder: &Path) -> Vec<Checkpoint> {
    let steps = checkpoint::steps(folder);
    let mut out: Vec<Checkpoint> = steps[steps.len().saturating_sub(MOST_CHECKPOINTS)..]
        .iter()
        .map(|&step| {
            let path = folder.join(checkpoint::dir_name(step));
            let state: StateFile = files::json(&path.join("state.json")).ok().flatten().unwrap_or_default();
            let sizes = fs::read_dir(&path).into_iter().flatten().filter_map(|entry| entry.ok()?.metadata().ok());
            let bytes = sizes.map(|meta| meta.len()).sum();
            Checkpoint { step, bytes, val_loss: state.val_loss, weights_hash: state.weights_hash, best: false }
        })
        .collect();
    let measured = out.iter_mut().filter(|c| c.val_loss.is_some_and(f64::is_finite));
    if let Some(best) = measured.min_by(|a, b| a.val_loss.unwrap_or(0.0).total_cmp(&b.val_loss.unwrap_or(0.0))) {
        best.best = true;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_plan::testing::{compiled, experiment};
    use runner_store::run_dir::{MANIFEST, RunDir, RunFiles};

    fn create(root: &Path) -> RunDir {
        let plan = compiled(&experiment());
        let manifest = Manifest::new(&plan, "exp.yaml".into(), vec![], "2026-01-01T00:00:00.000Z".to_owned());
        RunDir::create(root, RunFiles { experiment: "", resolved: "seed: 1\n", template: None, plan: &plan, manifest })
            .unwrap()
    }

    fn page(paths: &[&Path]) -> PageData {
        read(&Request { runs: paths.iter().map(|&p| p.to_owned()).collect(), ..Request::default() }).unwrap()
    }

    #[test]
    fn a_run_without_a_step_has_its_plan() {
        let root = tempfile::tempdir().unwrap();
        let run = create(root.path());
        let data = page(&[run.path()]);
        let shown = &data.runs[0];
        assert_eq!((data.title.as_str(), shown.status), (shown.id.as_str(), ListedStatus::Running));
        assert!(data.running() && shown.problems.is_empty() && shown.curves.loss.is_none());
        assert!(shown.plan.timeline.is_some() && shown.measured_timeline.is_none());
        assert_eq!((shown.memory.ranks.len(), shown.memory.ranks[0].peak_rss), (1, None));
        assert!(shown.memory.ranks[0].planned.weights > 0);
    }

    #[test]
    fn broken_files_are_problems_and_the_rest_is_shown() {
        let root = tempfile::tempdir().unwrap();
        let run = create(root.path());
        let path = run.path().to_owned();
        fs::write(path.join(METRICS), "{\"kind\":\"train\",\"step\":1,\"loss\":3.0,\"tokens\":4}\n\u{0}").unwrap();
        for name in [MANIFEST, PLAN, "summary.json", timeline::TIMELINE] {
            fs::write(path.join(name), "{").unwrap();
        }
        fs::write(path.join(RESOLVED), [0xff, 0xfe]).unwrap();
        let data = page(&[&path]);
        let shown = &data.runs[0];
        assert_eq!((shown.status, shown.curves.last_step, shown.problems.len()), (ListedStatus::Broken, 1, 5));
        assert!(serde_json::to_string(&data).is_ok());
        fs::remove_dir_all(&path).unwrap();
        assert_eq!(page(&[&path]).runs[0].status, ListedStatus::Broken);
    }

    #[test]
    fn what_was_measured_is_beside_the_plan() {
        let root = tempfile::tempdir().unwrap();
        let run = create(root.path());
        let step = r#"{"format":1,"step":5,"end":0.5,"spans":[
            {"rank":0,"what":"forward","mb":0,"chunk":0,"start":0.0,"end":0.2},
            {"rank":0,"what":null,"mb":null,"chunk":0,"start":0.2,"end":0.5}],
            "memory":[{"rank":0,"weights":7,"gradients":8,"optimizer":9,"step":null}]}"#;
        fs::write(run.path().join(timeline::TIMELINE), step).unwrap();
        let data = page(&[run.path()]);
        let measured = data.runs[0].measured_timeline.as_ref().unwrap();
        assert_eq!((measured.step, measured.rows[0].stage, measured.rows[0].idle), (Some(5), Some(0), Some(0.6)));
        assert_eq!(data.runs[0].memory.ranks[0].measured.unwrap().weights, 7);
    }

    #[test]
    fn a_record_is_read_again_when_it_is_another() {
        let root = tempfile::tempdir().unwrap();
        let run = create(root.path());
        let metrics = run.path().join(METRICS);
        let line = |loss: f64| format!("{{\"kind\":\"train\",\"step\":1,\"loss\":{loss:?},\"tokens\":4}}\n");
        let write = |text: String, seconds: u64| {
            fs::write(&metrics, text).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            fs::File::options().append(true).open(&metrics).unwrap().set_modified(time).unwrap();
        };
        let request = Request { runs: vec![run.path().to_owned()], ..Request::default() };
        let mut reader = Reader::default();
        let mut loss = || reader.read(&request).unwrap().runs[0].curves.final_loss;
        write(line(3.0), 1);
        assert_eq!(loss(), Some(3.0));
        // Of the same length and time: only what was read before can still say 3.
        write(line(4.0), 1);
        assert_eq!(loss(), Some(3.0), "not parsed again");
        write(line(4.0), 2);
        assert_eq!(loss(), Some(4.0));
        write(line(4.0) + &line(5.0).replace(":1,", ":2,"), 2);
        assert_eq!(loss(), Some(5.0));
    }

    #[test]
    fn a_plan_is_read_again_when_it_is_another() {
        let root = tempfile::tempdir().unwrap();
        let run = create(root.path());
        let request = Request { runs: vec![run.path().to_owned()], ..Request::default() };
        let mut reader = Reader::default();
        let first = reader.read(&request).unwrap().runs.remove(0).plan;
        assert!(Arc::ptr_eq(&first, &reader.read(&request).unwrap().runs[0].plan));
        fs::write(run.path().join(PLAN), "{}").unwrap();
        assert_eq!(reader.read(&request).unwrap().runs[0].problems.len(), 1);
    }
}
