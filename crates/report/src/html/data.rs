//! The data of the page: everything that it shows of runs, read from their directories and nowhere else.
//!
//! A run is shown as far as it can be read. Files that are damaged are listed in `problems`.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde::Serialize;

use super::checkpoints::{ListedCheckpoint, list_checkpoints};
use super::curves::{Curves, read_curves};
use super::gantt::{Gantt, measured_gantt, planned_gantt};
use super::memory::{MemoryTable, memory_table};
use super::names::name_shown_runs;
use super::problems::or_problem;
use super::samples::{Samples, read_samples};
use super::settings::{DifferingSetting, setting_differences, settings_of};
use super::sweep::{self, SweepTable};
use runner_plan::comparability::{MeasurementBasis, find_incomparable, group_by_reason};
use runner_record::catalog::ListedStatus;
use runner_record::files::{if_present, read_small};
use runner_record::lock::RunLock;
use runner_record::manifest::{Manifest, RunStatus};
use runner_record::record_check::describe_changed_descriptions;
use runner_record::run_dir::{self, CHECKPOINTS, MANIFEST, METRICS, PLAN, RESOLVED, SAMPLES, SUMMARY};
use runner_record::summary::TestResult;
use runner_record::{time, timeline};
use runner_spec::error::CommandError;
use runner_spec::forecast::Forecast;
use runner_spec::measure::{Measure, MeasureForm, Quantity};
use runner_spec::plan::Plan;
use runner_sweep::{PickedSettings, SweptRun, stopped_points};

/// Version of the data: a served page reloads itself when it changes.
const FORMAT: u32 = 1;

/// Points of a curve, summed over all runs.
const MAX_POINTS: usize = 8000;
/// The least and the most points of a curve of one run.
const POINTS_PER_RUN: (usize, usize) = (120, 2000);

/// The runs that a page is to show.
#[derive(Debug, Clone, Default)]
pub struct ReportRequest {
    /// Run directories, in the order shown.
    pub runs: Vec<PathBuf>,
    /// The folder of a sweep, whose runs are shown after `runs`.
    pub sweep: Option<PathBuf>,
    pub title: Option<String>,
}

/// The whole page.
#[derive(Debug, Clone, Serialize)]
pub struct PageData {
    pub(super) format: u32,
    pub(super) title: String,
    /// The time at which the runs were read: RFC 3339, UTC.
    pub(super) made: String,
    /// The version of this program.
    pub(super) version: &'static str,
    pub runs: Vec<RunData>,
    /// True if only their owner may read the settings of one of the runs.
    #[serde(skip)]
    pub is_private: bool,
    pub(super) differences: Vec<DifferingSetting>,
    /// What the evaluations of the runs measure.
    pub(super) measures: Vec<PageMeasure>,
    /// The reasons why losses of the runs do not compare, a sentence for each.
    pub(super) incomparable: Vec<String>,
    /// Reasons to doubt the losses, and the sweeps from which the runs were picked, if no sweep is on the page. A sentence each.
    pub(super) notes: Vec<String>,
    pub(super) sweep: Option<SweepTable>,
}

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct RunData {
    pub id: String,
    /// What distinguishes the run from the others of the page, or its id.
    pub(super) name: String,
    pub(super) status: ListedStatus,
    /// The error that ended the run.
    pub(super) error: Option<String>,
    /// Files that could not be read.
    pub(crate) problems: Vec<String>,
    /// The steps that are planned; those that are done are in `curves`.
    pub(super) steps: u64,
    /// Tokens that the model has seen, and seconds of its training; `None` while the run trains. Each with the part of the run itself.
    pub(super) tokens: Option<u64>,
    pub(super) own_tokens: Option<u64>,
    pub(super) wall_seconds: Option<f64>,
    pub(super) own_wall_seconds: Option<f64>,
    /// The result of the best checkpoint on the test data.
    pub(super) test: Option<TestResult>,
    pub(super) final_hash: Option<String>,
    /// The peak of resident memory, over all ranks.
    pub(super) peak_rss: Option<u64>,
    /// Its members are `null` if the plan cannot be read.
    #[serde(serialize_with = "serialize_shared")]
    pub(crate) plan: Arc<PlannedRun>,
    pub(super) memory: MemoryTable,
    pub(crate) curves: Curves,
    pub(super) samples: Samples,
    pub(super) measured_timeline: Option<Gantt>,
    pub(super) checkpoints: Vec<ListedCheckpoint>,
    pub(super) manifest: Option<Manifest>,
    pub(super) yaml: Option<String>,
}

impl RunData {
    fn measures(&self, quantity: &Quantity) -> bool {
        match quantity {
            Quantity::TrainLoss => self.curves.loss.is_some(),
            Quantity::TestLoss => self.test.is_some(),
            _ => {
                let mut evaluated = self.curves.evals.iter().flat_map(|evaluation| evaluation.measured.iter());
                evaluated.any(|(measure, _)| measure.quantity() == *quantity)
            }
        }
    }
}

/// A measure of the runs' evaluations.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct PageMeasure {
    key: Cow<'static, str>,
    /// The task that it scores.
    task: Option<String>,
    label: &'static str,
    form: MeasureForm,
}

/// What the evaluations of `runs` measure, in the order in which it first appears.
fn measures_of(runs: &[RunData]) -> Vec<Measure> {
    let mut found: Vec<Measure> = Vec::new();
    for (measure, _) in runs.iter().flat_map(|run| &run.curves.evals).flat_map(|e| e.measured.iter()) {
        if !found.contains(measure) {
            found.push(measure.clone());
        }
    }
    found
}

impl From<&Measure> for PageMeasure {
    fn from(measure: &Measure) -> Self {
        let task = measure.task().map(str::to_owned);
        Self { key: measure.key(), task, label: measure.label(), form: measure.form() }
    }
}

/// The contents of the plan, which never change.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct PlannedRun {
    parameters: Option<u64>,
    flops_per_step: Option<f64>,
    memory_bytes: Option<u64>,
    forecast: Option<Forecast>,
    pub(super) timeline: Option<Gantt>,
    notes: Vec<String>,
    #[serde(skip)]
    plan: Option<Plan>,
}

/// Length and time of a file, which change when the file changes. `None` if there is no file.
type FileStamp = Option<(u64, SystemTime)>;

fn file_stamp(path: &Path) -> FileStamp {
    let meta = fs::metadata(path).ok()?;
    Some((meta.len(), meta.modified().ok()?))
}

/// The state of the files of a run, whether a process works on the run, and the number of points per curve.
type RunKey = ([FileStamp; 8], bool, usize);

/// Reads runs. It keeps what it read of those whose files did not change.
#[derive(Debug, Default)]
pub(crate) struct RunReader {
    runs: HashMap<PathBuf, (RunKey, RunData)>,
}

/// Reads the runs of `request` once.
///
/// # Errors
/// If the sweep cannot be read.
pub fn read_page_data(request: &ReportRequest) -> Result<PageData, CommandError> {
    RunReader::default().read(request)
}

impl RunReader {
    /// Reads the runs of `request`.
    ///
    /// # Errors
    /// If the sweep cannot be read.
    pub(super) fn read(&mut self, request: &ReportRequest) -> Result<PageData, CommandError> {
        let mut paths = request.runs.clone();
        let mut sweep = None;
        if let Some(folder) = &request.sweep {
            let (table, runs) = sweep::load_sweep(folder)?;
            let canonical = |path: &PathBuf| fs::canonicalize(path).unwrap_or_else(|_| path.clone());
            let named: Vec<PathBuf> = request.runs.iter().map(canonical).collect();
            paths.extend(runs.into_iter().filter(|run| !named.contains(&canonical(run))));
            sweep = Some(table);
        }
        let max_points = (MAX_POINTS / paths.len().max(1)).clamp(POINTS_PER_RUN.0, POINTS_PER_RUN.1);
        let mut runs: Vec<RunData> = paths.iter().map(|path| self.read_run(path, max_points)).collect();
        let settings: Vec<_> = runs.iter().map(|run| settings_of(run.yaml.as_deref())).collect();
        let ids: Vec<&str> = runs.iter().map(|run| run.id.as_str()).collect();
        let names = name_shown_runs(&ids, &settings, sweep.as_ref());
        runs.iter_mut().zip(names).for_each(|(run, name)| run.name = name);
        Ok(PageData {
            format: FORMAT,
            is_private: paths.iter().any(|path| run_dir::has_private_settings(path)),
            title: request.title.clone().unwrap_or_else(|| default_title(&runs, sweep.as_ref())),
            made: time::now(),
            version: env!("CARGO_PKG_VERSION"),
            differences: setting_differences(&settings),
            measures: measures_of(&runs).iter().map(PageMeasure::from).collect(),
            incomparable: describe_incomparable(&runs),
            notes: describe_notes(&paths, &runs, sweep.is_none()),
            runs,
            sweep,
        })
    }

    /// The run in `path`, with at most `max_points` per curve. Its files are read again if one of them changed.
    pub(crate) fn read_run(&mut self, path: &Path, max_points: usize) -> RunData {
        let files = [METRICS, SAMPLES, SUMMARY, MANIFEST, PLAN, CHECKPOINTS, RESOLVED, timeline::TIMELINE];
        // Taken before reading, so that a write during the reading changes the stamp.
        let key = (files.map(|name| file_stamp(&path.join(name))), RunLock::is_held(path), max_points);
        let run = match self.runs.get(path) {
            Some((known, run)) if *known == key => run.clone(),
            _ => read_run(path, max_points),
        };
        self.runs.insert(path.to_owned(), (key, run.clone()));
        let listed = stopped_points::describe(path);
        RunData { status: listed.status, error: listed.error, steps: listed.steps, ..run }
    }
}

/// The run in `path`, with at most `max_points` per curve.
fn read_run(path: &Path, max_points: usize) -> RunData {
    let listed = stopped_points::describe(path);
    let mut problems = Vec::new();
    let manifest = or_problem(run_dir::read_manifest(path).map(Some), &mut problems);
    let summary = or_problem(run_dir::read_summary(path), &mut problems);
    let planned = or_problem(runner_compare::stored_plan::read(path).map(PlannedRun::new), &mut problems);
    // Without a readable manifest, the summary shows how the run ended.
    let status = summary.as_ref().map_or(RunStatus::Running, |summary| summary.status);
    let steps = summary.as_ref().map_or(u64::MAX, |summary| summary.steps_total);
    let known = manifest.clone().unwrap_or_else(|| Manifest { status, steps, ..Manifest::default() });
    let current = summary.as_ref().filter(|summary| summary.is_current(known.status));
    let curves = read_curves(path, &known, current, max_points, &mut problems);
    let curves = or_problem(curves, &mut problems);
    let samples = read_samples(&path.join(SAMPLES), &mut problems);
    let samples = or_problem(samples, &mut problems);
    problems.extend(manifest.as_ref().and_then(|manifest| describe_changed_descriptions(path, manifest)));
    let yaml = or_problem(if_present(read_small(&path.join(RESOLVED))), &mut problems);
    let measured = or_problem(timeline::read(path), &mut problems);
    let measured_memory = measured.as_ref().map_or(&[][..], |step| &step.memory);
    let memory = planned.plan.as_ref().map(|plan| memory_table(plan, summary.as_ref(), measured_memory));
    RunData {
        name: listed.id.clone(),
        id: listed.id,
        status: listed.status,
        error: listed.error,
        steps: listed.steps,
        tokens: current.map(|s| s.tokens),
        own_tokens: current.map(|s| s.own.tokens),
        wall_seconds: current.map(|s| s.wall_seconds),
        own_wall_seconds: current.map(|s| s.own.wall_seconds),
        test: current.and_then(|s| s.test.clone()),
        final_hash: current.and_then(|s| s.final_hash.clone()),
        peak_rss: current.and_then(|s| s.peak_rss_bytes),
        memory: memory.unwrap_or_default(),
        curves,
        samples,
        measured_timeline: measured.and_then(|step| measured_gantt(&step, planned.plan.as_ref())),
        plan: Arc::new(planned),
        checkpoints: list_checkpoints(&path.join(CHECKPOINTS), &mut problems),
        problems,
        manifest,
        yaml,
    }
}

impl PlannedRun {
    /// The number of ranks, if the plan can be read.
    pub(crate) fn ranks(&self) -> Option<usize> {
        Some(self.plan.as_ref()?.ranks.len())
    }

    fn new(plan: Plan) -> Self {
        let forecast =
            plan.forecast.clone().map(|forecast| Forecast { stages: Vec::new(), spans: Vec::new(), ..forecast });
        Self {
            parameters: Some(plan.totals.parameters),
            flops_per_step: Some(plan.totals.pace.flops_after(plan.totals.steps) / plan.totals.steps.max(1) as f64),
            memory_bytes: Some(plan.ranks.iter().fold(0, |sum, r| r.memory.total().saturating_add(sum))),
            forecast,
            timeline: planned_gantt(&plan),
            notes: plan.notes.clone(),
            plan: Some(plan),
        }
    }
}

/// Says which figures of `runs` do not compare, and why. A run without a figure is not compared by it.
fn describe_incomparable(runs: &[RunData]) -> Vec<String> {
    let mut figures =
        vec![("train loss".to_owned(), Quantity::TrainLoss), ("test loss".to_owned(), Quantity::TestLoss)];
    for measure in measures_of(runs) {
        let quantity = measure.quantity();
        if figures.iter().all(|(_, known)| *known != quantity) {
            figures.push((measure.task().unwrap_or(measure.label()).to_owned(), quantity));
        }
    }
    let named = figures.into_iter().map(|(name, quantity)| {
        let measured = runs.iter().filter(|run| run.measures(&quantity));
        let basis = |run: &RunData| Some((run.id.clone(), MeasurementBasis::of_plan(run.plan.plan.as_ref()?)));
        let bases: Vec<(String, MeasurementBasis)> = measured.filter_map(basis).collect();
        (name, find_incomparable(bases.iter().map(|(id, basis)| (id.clone(), basis)), &quantity))
    });
    let found = group_by_reason(named);
    found.into_iter().map(|(reason, names)| format!("not comparable: {}: {reason}", names.join(", "))).collect()
}

/// The evaluated text of `runs`, which are in `paths`, that was trained on, or chose a checkpoint; if they `may_be_picked`, also notes on the sweeps
/// that compared more settings than these.
fn describe_notes(paths: &[PathBuf], runs: &[RunData], may_be_picked: bool) -> Vec<String> {
    let plans = runs.iter().filter_map(|run| run.plan.plan.as_ref());
    let warnings: BTreeSet<String> = plans.flat_map(|plan| plan.data.overlap_warnings()).collect();
    let mut notes: Vec<String> = warnings.into_iter().collect();
    if may_be_picked {
        let swept =
            paths.iter().zip(runs).filter_map(|(path, run)| SweptRun::of_manifest(path, run.manifest.as_ref()?));
        let swept: Vec<SweptRun> = swept.collect();
        notes.extend(PickedSettings::find(&swept, swept.len() < runs.len()).notes);
    }
    notes
}

fn serialize_shared<S: serde::Serializer>(plan: &Arc<PlannedRun>, to: S) -> Result<S::Ok, S::Error> {
    plan.as_ref().serialize(to)
}

fn default_title(runs: &[RunData], sweep: Option<&SweepTable>) -> String {
    match (sweep, runs) {
        (Some(sweep), _) => format!("Sweep {}", sweep.id),
        (None, [one]) => one.id.clone(),
        (None, runs) => format!("{} runs", runs.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_plan::testing::{compiled, experiment};
    use runner_record::checkpoint::dir_name;
    use runner_record::files::write_sealed_json;
    use runner_record::run_dir::{RunDir, RunFiles};

    fn create(root: &Path) -> RunDir {
        let plan = compiled(&experiment());
        let manifest = Manifest::new(&plan, "exp.yaml".into(), vec![], "2026-01-01T00:00:00.000Z".to_owned());
        RunDir::create(
            root,
            RunFiles {
                experiment: "",
                resolved: "seed: 1\n",
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

    fn page(paths: &[&Path]) -> PageData {
        read_page_data(&ReportRequest {
            runs: paths.iter().map(|&p| p.to_owned()).collect(),
            ..ReportRequest::default()
        })
        .unwrap()
    }

    #[test]
    fn a_run_without_a_step_has_its_plan() {
        let root = tempfile::tempdir().unwrap();
        let run = create(root.path());
        let data = page(&[run.path()]);
        let shown = &data.runs[0];
        assert_eq!((data.title.as_str(), shown.status), (shown.id.as_str(), ListedStatus::Running));
        assert!(shown.problems.is_empty() && shown.curves.loss.is_none());
        assert!(shown.plan.timeline.is_some() && shown.measured_timeline.is_none());
        assert_eq!((shown.memory.ranks.len(), shown.memory.ranks[0].peak_rss), (1, None));
        assert!(shown.memory.ranks[0].planned.weights > 0);
    }

    #[test]
    fn broken_files_are_problems_and_the_rest_is_shown() {
        let root = tempfile::tempdir().unwrap();
        let run = create(root.path());
        let path = run.path().to_owned();
        fs::write(path.join(METRICS), "{\"kind\":\"train\",\"step\":1,\"loss\":3.0,\"tokens\":4}\n\u{0}\n").unwrap();
        for name in [MANIFEST, PLAN, "summary.json", timeline::TIMELINE] {
            fs::write(path.join(name), "{").unwrap();
        }
        fs::write(path.join(RESOLVED), [0xff, 0xfe]).unwrap();
        let data = page(&[&path]);
        let shown = &data.runs[0];
        assert_eq!((shown.status, shown.curves.last_step, shown.problems.len()), (ListedStatus::Broken, 1, 6));
        assert!(serde_json::to_string(&data).is_ok());
        fs::remove_dir_all(&path).unwrap();
        assert_eq!(page(&[&path]).runs[0].status, ListedStatus::Broken);
    }

    #[test]
    fn measurements_are_beside_the_plan() {
        let root = tempfile::tempdir().unwrap();
        let run = create(root.path());
        let step = r#"{"format":1,"step":5,"end":0.5,"spans":[
            {"rank":0,"what":"forward","mb":0,"chunk":0,"start":0.0,"end":0.2},
            {"rank":0,"what":null,"mb":null,"chunk":0,"start":0.2,"end":0.5}],
            "memory":[{"rank":0,"weights":7,"gradients":8,"optimizer":9,"step":null}]}"#;
        let step: serde_json::Value = serde_json::from_str(step).unwrap();
        write_sealed_json(&run.path().join(timeline::TIMELINE), &step).unwrap();
        let data = page(&[run.path()]);
        let measured = data.runs[0].measured_timeline.as_ref().unwrap();
        assert_eq!((measured.step, measured.rows[0].stage, measured.rows[0].idle), (Some(5), Some(0), Some(0.6)));
        assert_eq!(data.runs[0].memory.ranks[0].measured.unwrap().weights, 7);
    }

    #[test]
    fn a_record_is_read_again_when_it_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let run = create(root.path());
        let metrics = run.path().join(METRICS);
        let line = |loss: f64| format!("{{\"kind\":\"train\",\"step\":1,\"loss\":{loss:?},\"tokens\":4}}\n");
        let write = |text: String, seconds: u64| {
            fs::write(&metrics, text).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            fs::File::options().append(true).open(&metrics).unwrap().set_modified(time).unwrap();
        };
        let request = ReportRequest { runs: vec![run.path().to_owned()], ..ReportRequest::default() };
        let mut reader = RunReader::default();
        let mut loss = || reader.read(&request).unwrap().runs[0].curves.final_loss;
        write(line(3.0), 1);
        assert_eq!(loss(), Some(3.0));
        // The new file has the same length and time, so the loss read before is still 3.
        write(line(4.0), 1);
        assert_eq!(loss(), Some(3.0), "not parsed again");
        write(line(4.0), 2);
        assert_eq!(loss(), Some(4.0));
        write(line(4.0) + &line(5.0).replace(":1,", ":2,"), 2);
        assert_eq!(loss(), Some(5.0));
    }

    /// Whether metrics are whole depends on the other files, and on whether a process works on the run.
    #[test]
    fn missing_records_are_shown_when_only_other_files_change() {
        let root = tempfile::tempdir().unwrap();
        let run = create(root.path());
        let path = run.path().to_owned();
        fs::write(path.join(METRICS), "{\"kind\":\"train\",\"step\":1,\"loss\":3.0,\"tokens\":4}\n").unwrap();
        let request = ReportRequest { runs: vec![path.clone()], ..ReportRequest::default() };
        let mut reader = RunReader::default();
        let mut problems = || {
            let mut problems = reader.read(&request).unwrap().runs.remove(0).problems;
            problems.retain(|problem| problem.contains(METRICS));
            problems.join("\n")
        };
        assert_eq!(problems(), "");
        fs::create_dir(path.join(CHECKPOINTS).join(dir_name(2))).unwrap();
        assert_eq!(problems(), "", "a process works on it");
        drop(run);
        assert!(problems().contains("1 of 2 steps are recorded"));
        fs::remove_dir(path.join(CHECKPOINTS).join(dir_name(2))).unwrap();
        assert_eq!(problems(), "");
        let manifest = Manifest { status: RunStatus::Done, ..run_dir::read_manifest(&path).unwrap() };
        write_sealed_json(&path.join(MANIFEST), &manifest).unwrap();
        assert!(problems().contains("1 of 100 steps are recorded"));
    }

    #[test]
    fn a_plan_is_read_again_when_it_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let run = create(root.path());
        let request = ReportRequest { runs: vec![run.path().to_owned()], ..ReportRequest::default() };
        let mut reader = RunReader::default();
        let first = reader.read(&request).unwrap().runs.remove(0).plan;
        assert!(Arc::ptr_eq(&first, &reader.read(&request).unwrap().runs[0].plan));
        fs::write(run.path().join(PLAN), "{}").unwrap();
        let problems = reader.read(&request).unwrap().runs.remove(0).problems;
        let [damaged, changed] = &problems[..] else { panic!("{problems:?}") };
        assert!(
            damaged.contains("the plan of the run is damaged") && changed.contains("plan.json changed"),
            "{problems:?}"
        );
    }
}
