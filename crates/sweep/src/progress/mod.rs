//! The progress of a sweep's points, read from their run directories, whichever process trained them. It is recorded nowhere else.

pub mod needed_runs;
mod seen_seeds;
pub mod stopped_points;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::record::{PlannedPoint, SweepRecord};
use crate::rows::rows_of;
use crate::schedule::SegmentResult;
use crate::spec::{MeasurementChoice, Objective, measurement_interval};
use runner_compare::stored_plan;
use runner_plan::MeasurementBasis;
use runner_record::manifest::{Manifest, RunStatus};
use runner_record::record_check::for_each_checked_metric;
use runner_record::run_dir::{self, CHECKPOINTS, METRICS, RunsSnapshot};
use runner_record::summary::median;
use runner_record::{MetricLine, RunLock, checkpoint};
use runner_spec::event::Evaluation;
use runner_spec::format::printable;
use runner_spec::measure::{Measure, Measured, Quantity};
use runner_stats::RowLosses;

pub(crate) use self::seen_seeds::find_seen_seeds;

/// The progress of all points of a sweep.
#[derive(Debug, Default)]
pub struct SweepProgress {
    /// The points in the order of `SweepRecord::points`. `None` for points without a run, and for duplicates.
    pub points: Vec<Option<PointProgress>>,
    /// Files of runs that cannot be read, each in one sentence. What they hold counts as not measured.
    pub problems: Vec<String>,
}

impl SweepProgress {
    /// Reads the progress of the points of `record` from the folder of runs `root`.
    #[must_use]
    pub fn read(root: &Path, record: &SweepRecord) -> Self {
        let runs = RunsSnapshot::read(root);
        let mut progress = Self { points: Vec::with_capacity(record.points.len()), ..Self::default() };
        for point in &record.points {
            let is_distinct = point.same_as.is_none();
            let run = is_distinct.then(|| progress.read_point(&runs, point, &record.objective)).flatten();
            progress.points.push(run);
        }
        progress
    }

    /// Reads the progress of the point at `position` again.
    pub fn update(&mut self, root: &Path, record: &SweepRecord, position: usize) {
        self.points[position] = self.read_point(&RunsSnapshot::read(root), &record.points[position], &record.objective);
    }

    fn read_point(
        &mut self,
        runs: &RunsSnapshot,
        point: &PlannedPoint,
        objective: &Objective,
    ) -> Option<PointProgress> {
        let mut problems = Vec::new();
        let progress = PointProgress::read(runs, point, objective, &mut problems);
        self.problems.extend(problems.into_iter().map(|problem| format!("point {}: {problem}", point.index)));
        progress
    }

    /// The result at the rung `rung` of the point at `position`, if there is one.
    #[must_use]
    pub fn result(&self, record: &SweepRecord, position: usize, rung: usize) -> Option<SegmentResult> {
        let point = record.points.get(position)?;
        self.points.get(position)?.as_ref()?.result(*point.rungs.get(rung)?, point.steps)
    }

    /// True if the point at `position` has a result at its first rung and is not done: it waits for its promotion, or was stopped early.
    #[must_use]
    pub fn is_judged(&self, record: &SweepRecord, position: usize) -> bool {
        let is_done =
            self.points.get(position).and_then(Option::as_ref).is_some_and(|run| run.status == RunStatus::Done);
        !is_done && self.result(record, position, 0).is_some()
    }

    /// The positions in `SweepRecord::points` of the points that should be running now; `None` if nothing is left to do. A point whose failure
    /// may not repeat is due again.
    #[must_use]
    pub fn due_points(&self, record: &SweepRecord) -> Option<Vec<usize>> {
        let tasks = record.tasks();
        let result = |task: usize, rung: usize| self.result(record, *tasks.points.get(task)?, rung);
        let decision = tasks.decide(record.workers(1), &result);
        let due = decision.due.iter().filter_map(|segment| tasks.points.get(segment.task).copied()).collect();
        (!decision.is_finished).then_some(due)
    }

    /// True if nothing of the sweep is left to do.
    #[must_use]
    pub fn is_finished(&self, record: &SweepRecord) -> bool {
        self.due_points(record).is_none()
    }
}

/// The run of a point.
#[derive(Debug, Clone)]
pub struct PointProgress {
    pub id: String,
    pub path: PathBuf,
    pub status: RunStatus,
    /// True if a process works on the run now.
    pub is_held: bool,
    /// The error that ended the run.
    pub error: Option<String>,
    /// True if the run failed because a number was not finite, so that a retry would fail in the same way.
    pub not_finite: bool,
    /// Training time in seconds, summed over all sessions and the steps that the run inherited, and the part of the run itself.
    pub seconds: Option<f64>,
    pub own_seconds: Option<f64>,
    /// The medians of tokens per second and of MFU over the steps, once no process works on the run; `mfu` is `None` too if the peak of
    /// the device is unknown.
    pub tokens_per_second: Option<f64>,
    pub mfu: Option<f64>,
    /// The data that the run is measured over; `None` if its plan cannot be read.
    pub basis: Option<MeasurementBasis>,
    /// The step of the newest checkpoint.
    checkpoint: Option<u64>,
    /// The number of optimizer steps done.
    pub steps: u64,
    rungs: Vec<RungValue>,
}

/// The objective of a run at one rung.
#[derive(Debug, Clone)]
struct RungValue {
    until: u64,
    /// The objective over the steps up to the rung, NaN if it is not finite; `None` if the metric was not measured after exactly that
    /// step.
    value: Option<f64>,
    /// The evaluation that gave `value`; empty if no evaluation did.
    evaluated: Evaluation,
    /// Its rows, at the last rung with a value.
    rows: Option<Arc<RowLosses>>,
}

/// The values of one metric of a run.
#[derive(Debug, Default)]
struct MetricSeries {
    /// The number of optimizer steps recorded.
    steps: u64,
    /// Steps with their values; NaN if the measured value is not finite.
    values: Vec<(u64, f64)>,
    evaluations: Vec<Evaluation>,
}

impl PointProgress {
    /// Reads the newest run of `point` among `runs`; `None` if the point has no run. Adds the files that cannot be read whole, and what they
    /// lack, to `problems`, each in one sentence.
    fn read(
        runs: &RunsSnapshot,
        point: &PlannedPoint,
        objective: &Objective,
        problems: &mut Vec<String>,
    ) -> Option<Self> {
        let found = runs.find(&point.name, &point.plan_hash);
        let Some((path, manifest)) = found.run else {
            let counts_as = "the run counts as missing, and the sweep trains the point again";
            problems.extend(found.broken.into_iter().map(|broken| format!("{broken}; {counts_as}")));
            return None;
        };
        let is_held = RunLock::is_held(&path);
        // Read before the metrics: a run that is training evaluates before it saves, so the metrics are at least as new.
        let checkpoint = checkpoint::newest_step(&path.join(CHECKPOINTS));
        let summary = run_dir::read_summary(&path).unwrap_or_else(|error| {
            problems.push(error.to_string());
            None
        });
        let summary = summary.filter(|s| s.is_current(manifest.status));
        let mut series = MetricSeries::default();
        let metrics = path.join(METRICS);
        let add = &mut |line: MetricLine| series.add(&line, &objective.metric);
        let problem = for_each_checked_metric(&path, &manifest, summary.as_ref(), add);
        problems.extend(problem.unwrap_or_else(|error| Some(error.to_string())));
        let needs_all = objective.at == MeasurementChoice::Best;
        let due = needs_all.then(|| recorded_interval(&path, &manifest, &objective.metric)).flatten();
        let mut rungs = series.rungs(objective, &point.rungs, due);
        // The rows of other runs decide nothing.
        if let (RunStatus::Done, Some(last)) = (manifest.status, rungs.iter_mut().rfind(|rung| rung.value.is_some())) {
            last.rows = rows_of(&path, &last.evaluated, &objective.metric);
        }
        let progress = Self {
            id: manifest.id,
            status: manifest.status,
            is_held,
            not_finite: summary.as_ref().is_some_and(|s| s.not_finite),
            seconds: summary.as_ref().map(|s| s.wall_seconds),
            own_seconds: summary.as_ref().map(|s| s.own.wall_seconds),
            tokens_per_second: summary.as_ref().and_then(|s| s.medians.tokens_per_second),
            mfu: summary.as_ref().and_then(|s| s.medians.mfu),
            error: manifest.error,
            checkpoint,
            steps: series.steps.max(checkpoint.unwrap_or(0)),
            rungs,
            basis: stored_plan::read(&path).ok().map(|plan| MeasurementBasis::of_plan(&plan)),
            path,
        };
        for rung in &progress.rungs {
            if rung.value.is_some_and(f64::is_nan) {
                let (metrics, metric, until) = (metrics.display(), objective.metric.key(), rung.until);
                let lack = format!("{metrics} has no finite {metric} after step {until}");
                problems.push(format!("{lack}, so it counts as the worst"));
            } else if progress.lacks_measurement(rung.until) {
                problems.push(progress.describe_missing(rung.until, objective));
            }
        }
        Some(progress)
    }

    /// The result at the rung after `until` of `total` steps, once the steps are done, measured and saved. The result after the last
    /// step needs a finished run. A run whose failure would repeat has failed at every rung that it did not reach; any other failure
    /// does not count as a result, nor does a rung whose measurement was lost.
    #[must_use]
    pub fn result(&self, until: u64, total: u64) -> Option<SegmentResult> {
        let rung = self.rungs.iter().find(|rung| rung.until == until)?;
        if self.status == RunStatus::Done || until < total && self.has_saved(until) {
            return rung.value.map(SegmentResult::Value);
        }
        (self.status == RunStatus::Failed && self.not_finite).then_some(SegmentResult::Failed)
    }

    /// True if training ended with a number that is not finite, or the objective after the last of `total` steps is not finite.
    #[must_use]
    pub fn has_diverged(&self, total: u64) -> bool {
        let is_not_finite = |result| matches!(result, SegmentResult::Value(value) if !f64::is_finite(value));
        self.status == RunStatus::Failed && self.not_finite
            || self.status == RunStatus::Done && self.result(total, total).is_some_and(is_not_finite)
    }

    /// The evaluation that gave the result at the rung after `until` steps, empty if it is unknown, and its rows.
    #[must_use]
    pub fn evaluated(&self, until: u64) -> (Measured, Option<Arc<RowLosses>>) {
        let rung = self.rungs.iter().find(|rung| rung.until == until);
        rung.map(|rung| (rung.evaluated.measured.clone(), rung.rows.clone())).unwrap_or_default()
    }

    /// The step of the newest checkpoint.
    pub(crate) fn checkpoint(&self) -> Option<u64> {
        self.checkpoint
    }

    fn has_saved(&self, until: u64) -> bool {
        self.checkpoint.is_some_and(|step| step >= until)
    }

    /// True if the run is past the rung after `until` steps, and its record lacks the measurement there: training on cannot add it.
    #[must_use]
    pub fn lacks_measurement(&self, until: u64) -> bool {
        let is_past = self.status == RunStatus::Done || self.has_saved(until);
        is_past && self.rungs.iter().any(|rung| rung.until == until && rung.value.is_none())
    }

    /// Why the steps up to `until` of the run, which is in the folder `runs`, cannot be trained, if they are done and the result is missing
    /// in its record.
    #[must_use]
    pub fn explain_missing(&self, until: u64, objective: &Objective, runs: &Path) -> Option<String> {
        let missing = self.lacks_measurement(until).then(|| self.describe_missing(until, objective))?;
        let remove = format!("runner runs rm {} --force --runs {}", printable(&self.id), runs.display());
        Some(format!(
            "{missing}, and no other file has it; restore the file, or remove the run with `{remove}`, so that the \
             sweep trains it again"
        ))
    }

    /// States that the record lacks the measurement after `until` steps.
    #[must_use]
    pub fn describe_missing(&self, until: u64, objective: &Objective) -> String {
        let (metrics, metric) = (self.path.join(METRICS), objective.metric.key());
        let when = if objective.at == MeasurementChoice::Best { "of an evaluation up to" } else { "after" };
        format!("{} lacks the {metric} {when} step {until}", metrics.display())
    }
}

/// The steps between measurements of `metric` in the run in `path`; `None` if its plan did not compute its first steps, or its plan cannot be
/// read.
fn recorded_interval(path: &Path, manifest: &Manifest, metric: &Measure) -> Option<u64> {
    let plan = stored_plan::read(path).ok().filter(|_| manifest.foreign_steps() == 0)?;
    measurement_interval(metric, &plan.ranks.first()?.program)
}

/// True if `evaluation` measures only other things than `metric`: the loss and each task may have their own intervals.
fn lacks_part(evaluation: &Evaluation, metric: &Measure) -> bool {
    let measured = &evaluation.measured;
    !measured.is_empty() && measured.iter().all(|(measure, _)| measure.task() != metric.task())
}

impl MetricSeries {
    fn add(&mut self, line: &MetricLine, metric: &Measure) {
        let (value, is_measured) = match line {
            MetricLine::Train(line) => {
                self.steps = self.steps.max(line.step);
                let value = if *metric == Measure::TRAIN_LOSS { line.loss } else { line.tokens_per_second };
                (value, !metric.is_evaluated())
            }
            MetricLine::Eval(evaluation) => {
                self.evaluations.push(evaluation.clone());
                let is_measured = metric.is_evaluated() && !lacks_part(evaluation, metric);
                (evaluation.measured.get(metric), is_measured)
            }
        };
        // An evaluation before the first step does not measure the training.
        if line.step() > 0 && is_measured {
            // Metrics files leave out values that are not finite.
            self.values.push((line.step(), value.unwrap_or(f64::NAN)));
        }
    }

    /// The objective at each of `rungs`. With the interval `due` the metric must have been measured whenever it was due.
    fn rungs(&self, objective: &Objective, rungs: &[u64], due: Option<u64>) -> Vec<RungValue> {
        let is_measured = |step: u64| self.values.iter().any(|(measured, _)| *measured == step);
        let rung = |&until: &u64| {
            let every = due.map_or(u64::MAX, |every| every.max(1));
            let mut steps = (1..=until / every).map(|count| count * every).chain([until]);
            let measured = steps.all(is_measured).then(|| self.objective(objective, until)).flatten();
            let at = |step: u64| self.evaluations.iter().rfind(|evaluation| evaluation.step == step);
            let evaluated = measured.and_then(|(step, _)| at(step).cloned()).unwrap_or_default();
            RungValue { until, value: measured.map(|(_, value)| value), evaluated, rows: None }
        };
        rungs.iter().map(rung).collect()
    }

    /// The objective over the steps up to `until`, after the step at which it was measured; `None` if nothing was measured.
    fn objective(&self, objective: &Objective, until: u64) -> Option<(u64, f64)> {
        let values = || self.values.iter().filter(|(step, _)| *step <= until).copied();
        match (objective.metric.quantity(), objective.at) {
            // The speed of a single step varies too much.
            (Quantity::Speed, _) => {
                let speeds = values().map(|(_, speed)| speed).filter(|speed| speed.is_finite());
                median(&mut speeds.collect::<Vec<_>>()).map(|speed| (until, speed))
            }
            (_, MeasurementChoice::Last) => values().next_back(),
            (_, MeasurementChoice::Best) => values().min_by(|(_, a), (_, b)| objective.goal().order(*a, *b)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_record::lines::for_each_record;

    fn progress(status: RunStatus, objective: &Objective, text: &str, rungs: &[u64]) -> PointProgress {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(METRICS);
        std::fs::write(&path, text).unwrap();
        let mut series = MetricSeries::default();
        for_each_record(&path, &mut |line: MetricLine| series.add(&line, &objective.metric)).unwrap();
        PointProgress {
            id: "a".into(),
            path: PathBuf::new(),
            status,
            is_held: false,
            error: None,
            not_finite: false,
            seconds: None,
            own_seconds: None,
            tokens_per_second: None,
            mfu: None,
            basis: None,
            checkpoint: Some(5),
            steps: series.steps,
            rungs: series.rungs(objective, rungs, None),
        }
    }

    const LINES: &str = "{\"kind\":\"eval\",\"step\":0,\"val_loss\":0.5}\n\
        {\"kind\":\"train\",\"step\":1,\"loss\":4.0,\"tokens\":1,\"tokens_per_second\":10.0}\n\
        {\"kind\":\"train\",\"step\":2,\"loss\":3.0,\"tokens\":1,\"tokens_per_second\":90.0}\n\
        {\"kind\":\"eval\",\"step\":2,\"val_loss\":2.0}\n\
        {\"kind\":\"train\",\"step\":3,\"loss\":null,\"tokens\":1,\"tokens_per_second\":30.0}\n\
        {\"kind\":\"train\",\"step\":4,\"loss\":3.5,\"tokens\":1,\"tokens_per_second\":20.0}\n\
        {\"kind\":\"eval\",\"step\":4,\"val_loss\":2.5}\n\
        {\"kind\":\"train\",\"step\":5,\"loss\":2.0,\"tokens\":1,\"tokens_per_second\":20.0}\n";

    fn value(metric: Measure, at: MeasurementChoice, until: u64) -> f64 {
        let objective = Objective::new(metric, at);
        progress(RunStatus::Done, &objective, LINES, &[until]).rungs[0].value.unwrap_or(f64::NAN)
    }

    #[test]
    fn the_last_and_the_best_are_those_of_what_was_measured_until_then() {
        assert_eq!(value(Measure::VAL_LOSS, MeasurementChoice::Last, 4), 2.5);
        assert_eq!(value(Measure::VAL_LOSS, MeasurementChoice::Best, 4), 2.0);
        assert!(value(Measure::VAL_LOSS, MeasurementChoice::Last, 3).is_nan(), "not an earlier evaluation");
        assert!(value(Measure::VAL_LOSS, MeasurementChoice::Last, 1).is_nan(), "not the one before the first step");
        assert_eq!(value(Measure::TRAIN_LOSS, MeasurementChoice::Last, 4), 3.5);
        assert_eq!(value(Measure::TRAIN_LOSS, MeasurementChoice::Best, 4), 3.0, "NaN is not the best");
        assert_eq!(value(Measure::TOKENS_PER_SECOND, MeasurementChoice::Last, 3), 30.0, "the median");
        assert!(value(Measure::of_key("hellaswag_acc").unwrap(), MeasurementChoice::Last, 4).is_nan());
    }

    #[test]
    fn evaluations_of_another_part_are_no_measurements() {
        let lines = "{\"kind\":\"eval\",\"step\":2,\"val_loss\":2.0}\n\
            {\"kind\":\"eval\",\"step\":3,\"hellaswag_acc\":0.5,\"hellaswag_n\":4}\n\
            {\"kind\":\"eval\",\"step\":4,\"val_loss\":1.0,\"hellaswag_acc\":0.25,\"hellaswag_n\":4}\n\
            {\"kind\":\"eval\",\"step\":5,\"hellaswag_n\":4}\n";
        let value = |metric: &Measure, at, until| {
            let objective = Objective::new(metric.clone(), at);
            progress(RunStatus::Done, &objective, lines, &[until]).rungs[0].value
        };
        let (loss, acc) = (Measure::VAL_LOSS, Measure::of_key("hellaswag_acc").unwrap());
        assert_eq!([2, 3, 4].map(|until| value(&loss, MeasurementChoice::Best, until)), [Some(2.0), None, Some(1.0)]);
        assert_eq!([2, 3, 4].map(|until| value(&acc, MeasurementChoice::Best, until)), [None, Some(0.5), Some(0.5)]);
        assert!(value(&acc, MeasurementChoice::Last, 5).is_some_and(f64::is_nan), "measured, and not finite");
    }

    #[test]
    fn steps_count_once_they_are_done_measured_and_saved() {
        let objective = &crate::testing::sweep().objective;
        let rungs = [4, 5, 6];
        let of = |status| progress(status, objective, LINES, &rungs);
        let found = |status, until| of(status).result(until, 6);
        assert_eq!(found(RunStatus::Running, 4), Some(SegmentResult::Value(2.5)), "whatever became of it");
        let at_the_rung = PointProgress { checkpoint: Some(4), ..of(RunStatus::Running) };
        assert_eq!(at_the_rung.result(4, 6), Some(SegmentResult::Value(2.5)), "killed before it recorded its end");
        assert_eq!(found(RunStatus::Interrupted, 5), None, "not evaluated there");
        assert_eq!(found(RunStatus::Interrupted, 6), None);
        assert_eq!(found(RunStatus::Done, 4), Some(SegmentResult::Value(2.5)));
        assert_eq!(found(RunStatus::Done, 6), None, "an earlier value is not that of the end");
        assert!(of(RunStatus::Done).lacks_measurement(6) && !of(RunStatus::Done).lacks_measurement(4));
        let until_then = LINES.split("{\"kind\":\"eval\",\"step\":4").next().unwrap();
        let before = progress(RunStatus::Running, objective, until_then, &rungs);
        assert_eq!(before.result(4, 6), None, "the step is done, its evaluation is not");
        for checkpoint in [None, Some(3)] {
            let unsaved = PointProgress { checkpoint, ..of(RunStatus::Failed) };
            assert_eq!(unsaved.result(4, 6), None, "measured, and lost");
        }
    }

    #[test]
    fn only_failures_that_would_repeat_are_results() {
        let objective = &crate::testing::sweep().objective;
        let failed = progress(RunStatus::Failed, objective, LINES, &[4, 6]);
        assert_eq!(failed.result(6, 6), None, "a full disk, say");
        assert!(!failed.has_diverged(6) && !progress(RunStatus::Done, objective, LINES, &[4]).has_diverged(4));
        let not_finite = LINES.replace("\"val_loss\":2.5", "\"val_loss\":null");
        assert!(progress(RunStatus::Done, objective, &not_finite, &[4]).has_diverged(4));
        let diverged = PointProgress { not_finite: true, ..failed };
        assert_eq!(diverged.result(4, 6), Some(SegmentResult::Value(2.5)));
        assert_eq!(diverged.result(6, 6), Some(SegmentResult::Failed));
        assert!(diverged.has_diverged(6));
    }

    #[test]
    fn a_point_that_waits_after_its_first_rung_is_judged() {
        let mut record = crate::testing::sweep();
        record.points.iter_mut().for_each(|point| (point.steps, point.rungs) = (6, vec![4, 6]));
        let of = |status| Some(progress(status, &record.objective, LINES, &[4, 6]));
        let points = vec![of(RunStatus::Interrupted), of(RunStatus::Done), None];
        let progress = SweepProgress { points, ..SweepProgress::default() };
        assert_eq!([0, 1, 2].map(|position| progress.is_judged(&record, position)), [true, false, false]);
        record.points[0].rungs[0] = 5;
        assert!(!progress.is_judged(&record, 0), "not evaluated there");
    }
}
