//! How a point stands: what its run directory says, whoever trained it. There is no other record of a sweep's progress.

use std::path::{Path, PathBuf};

use super::frozen::{PlannedPoint, SweepRecord};
use super::point::PointValues;
use super::results::{PointStatus, ResultsRow};
use super::schedule::SegmentResult;
use super::spec::{MeasurementChoice, Objective, ObjectiveMetric};
use runner_store::checkpoint;
use runner_store::lock::RunLock;
use runner_store::manifest::RunStatus;
use runner_store::metrics::{MetricLine, for_each_metric};
use runner_store::run_dir;
use runner_store::run_dir::{CHECKPOINTS, METRICS, RunsSnapshot};
use runner_store::summary::median;

/// The run of a point.
#[derive(Debug, Clone)]
pub struct PointProgress {
    pub id: String,
    pub path: PathBuf,
    pub status: RunStatus,
    /// Whether a process works on it now.
    pub held: bool,
    /// Why it failed, and whether it would of the same again.
    pub error: Option<String>,
    pub not_finite: bool,
    /// At work, all sessions together.
    pub seconds: Option<f64>,
    /// Of its newest checkpoint.
    checkpoint: Option<u64>,
    measured: RungValues,
}

/// What the metrics of a run say of the objective.
#[derive(Debug, Clone, Default)]
struct RungValues {
    /// Optimizer steps recorded.
    steps: u64,
    /// By rung.
    rungs: Vec<RungValue>,
}

#[derive(Debug, Clone, Copy)]
struct RungValue {
    until: u64,
    /// Whether something was measured after that very step.
    there: bool,
    /// The objective of the steps until then; NaN if there is none.
    value: f64,
}

/// A metric while it is read.
#[derive(Debug, Default)]
struct MetricSeries {
    steps: u64,
    /// By step: NaN where it was measured and is no number.
    values: Vec<(u64, f64)>,
}

impl PointProgress {
    /// Of the newest run of `point` among `runs`; `None` if there is none.
    #[must_use]
    pub fn read(runs: &RunsSnapshot, point: &PlannedPoint, objective: Objective) -> Option<Self> {
        let (path, manifest) = runs.find(&point.name, &point.plan_hash).run?;
        let held = RunLock::is_held(&path);
        let summary = run_dir::read_summary(&path).ok().flatten().filter(|s| s.status == manifest.status);
        Some(Self {
            id: manifest.id,
            status: manifest.status,
            held,
            not_finite: summary.as_ref().is_some_and(|s| s.not_finite),
            seconds: summary.map(|s| s.wall_seconds),
            error: manifest.error,
            checkpoint: checkpoint::saved_steps(&path.join(CHECKPOINTS)).last().copied(),
            measured: RungValues::read(&path.join(METRICS), objective, &point.rungs),
            path,
        })
    }

    /// Steps recorded.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.measured.steps
    }

    /// What came out at the rung of the first `until` of `total` steps, once they are done, measured and saved. The last
    /// step counts when the run is done. A run that would fail of the same again has failed at the rungs that it did not
    /// reach; any other failure says nothing of the point.
    #[must_use]
    pub fn finding(&self, until: u64, total: u64) -> Option<SegmentResult> {
        let rung = self.measured.rungs.iter().find(|rung| rung.until == until)?;
        let saved = self.measured.steps >= until && self.checkpoint.is_some_and(|step| step >= until);
        if self.status == RunStatus::Done || until < total && rung.there && saved {
            return Some(SegmentResult::Value(rung.value));
        }
        (self.status == RunStatus::Failed && self.not_finite).then_some(SegmentResult::Failed)
    }
}

impl RungValues {
    fn read(path: &Path, objective: Objective, rungs: &[u64]) -> Self {
        let series = MetricSeries::read(path, objective.metric);
        let rung = |&until: &u64| RungValue {
            until,
            there: series.values.iter().any(|(step, _)| *step == until),
            value: series.value(objective, until),
        };
        Self { steps: series.steps, rungs: rungs.iter().map(rung).collect() }
    }
}

impl MetricSeries {
    fn read(path: &Path, metric: ObjectiveMetric) -> Self {
        let mut series = Self::default();
        // What cannot be read counts as not measured: the run itself tells what is wrong when it goes on.
        let _ = for_each_metric(path, &mut |line| series.add(&line, metric));
        series
    }

    fn add(&mut self, line: &MetricLine, metric: ObjectiveMetric) {
        let (step, value) = match line {
            MetricLine::Train(line) => {
                self.steps = self.steps.max(line.step);
                match metric {
                    ObjectiveMetric::TrainLoss => (line.step, line.loss),
                    ObjectiveMetric::TokensPerSecond => (line.step, line.tokens_per_second),
                    _ => return,
                }
            }
            // What is measured before the first step says nothing of the training.
            // One that is not finite is written as none.
            MetricLine::Eval(line) if line.step > 0 => match metric {
                ObjectiveMetric::ValLoss => (line.step, line.val_loss),
                ObjectiveMetric::ValPerplexity => (line.step, line.val_perplexity),
                ObjectiveMetric::HellaswagAcc => (line.step, line.hellaswag_acc),
                ObjectiveMetric::HellaswagAccNorm => (line.step, line.hellaswag_acc_norm),
                ObjectiveMetric::TrainLoss | ObjectiveMetric::TokensPerSecond => return,
            },
            MetricLine::Eval(_) => return,
        };
        self.values.push((step, value.unwrap_or(f64::NAN)));
    }

    /// NaN if nothing was measured.
    fn value(&self, objective: Objective, until: u64) -> f64 {
        let upto = || self.values.iter().filter(|(step, _)| *step <= until).map(|(_, value)| *value);
        let value = match (objective.metric, objective.at) {
            // One step's speed says little.
            (ObjectiveMetric::TokensPerSecond, _) => median(&mut upto().filter(|v| v.is_finite()).collect::<Vec<_>>()),
            (_, MeasurementChoice::Last) => upto().next_back(),
            (_, MeasurementChoice::Best) => upto().min_by(|a, b| objective.goal.order(*a, *b)),
        };
        value.unwrap_or(f64::NAN)
    }
}

/// How all points of a sweep stand, in the order of `SweepRecord::points`; duplicates have none of their own.
#[must_use]
pub fn read_all(root: &Path, frozen: &SweepRecord) -> Vec<Option<PointProgress>> {
    let runs = RunsSnapshot::read(root);
    let read =
        |p: &PlannedPoint| if p.same_as.is_some() { None } else { PointProgress::read(&runs, p, frozen.objective) };
    frozen.points.iter().map(read).collect()
}

/// How far a sweep has come, as far as its points' runs say; what failed and may not fail again is to be done again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweepProgress {
    /// Whether nothing is left to do.
    pub over: bool,
    /// Places in `SweepRecord::points` of those that are to be running now.
    pub due: Vec<usize>,
}

#[must_use]
pub fn progress(frozen: &SweepRecord, standings: &[Option<PointProgress>]) -> SweepProgress {
    let tasks = frozen.tasks();
    let found = |task: usize, rung: usize| {
        let place = *tasks.points.get(task)?;
        let point = frozen.points.get(place)?;
        standings.get(place)?.as_ref()?.finding(*point.rungs.get(rung)?, point.steps)
    };
    let decision = tasks.decide(frozen.workers(1), &found);
    let due = decision.due.iter().filter_map(|segment| tasks.points.get(segment.task).copied()).collect();
    SweepProgress { over: decision.over, due }
}

/// Whether nothing of a sweep is left to do.
#[must_use]
pub fn is_finished(root: &Path, frozen: &SweepRecord) -> bool {
    progress(frozen, &read_all(root, frozen)).over
}

/// The table's row of each point. `due`: places of those that go on, as far as is known now.
#[must_use]
pub fn rows(frozen: &SweepRecord, standings: &[Option<PointProgress>], due: &[usize]) -> Vec<ResultsRow> {
    let own: Vec<ResultsRow> = frozen
        .points
        .iter()
        .enumerate()
        .map(|(i, point)| row(point, standings.get(i).and_then(Option::as_ref), due.contains(&i)))
        .collect();
    let shown = |i: usize| {
        let same = frozen.points[i].same_as.and_then(|index| frozen.points.iter().position(|p| p.index == index));
        let row = &own[same.unwrap_or(i)];
        let status = if same.is_some() { PointStatus::Duplicate } else { row.status };
        ResultsRow { point: frozen.points[i].index, values: frozen.points[i].values.clone(), status, ..row.clone() }
    };
    (0..own.len()).map(shown).collect()
}

fn row(point: &PlannedPoint, standing: Option<&PointProgress>, due: bool) -> ResultsRow {
    let mut row = ResultsRow {
        point: point.index,
        values: point.values.clone(),
        status: PointStatus::Queued,
        steps: 0,
        objective: None,
        run: None,
        seconds: None,
    };
    let Some(s) = standing else { return row };
    let value = |until: u64| match s.finding(until, point.steps) {
        Some(SegmentResult::Value(value)) => Some(value),
        _ => None,
    };
    let judged = point.rungs.iter().rev().find_map(|&until| value(until));
    row.status = match s.status {
        RunStatus::Done => PointStatus::Done,
        RunStatus::Failed => PointStatus::Failed,
        _ if s.held => PointStatus::Running,
        _ if judged.is_some() && !due => PointStatus::Stopped,
        _ => PointStatus::Interrupted,
    };
    row.steps = s.steps().min(point.steps);
    row.objective = judged.filter(|value| value.is_finite() && row.status != PointStatus::Failed);
    row.run = Some(s.id.clone());
    row.seconds = s.seconds;
    row
}

/// Values and results of points that are runs of their own. Results after different numbers of steps are no match for each
/// other: with early stopping those after the first rung are taken, which all points have that came so far.
#[must_use]
pub fn comparable(
    frozen: &SweepRecord,
    standings: &[Option<PointProgress>],
    rows: &[ResultsRow],
) -> (Option<u64>, Vec<(PointValues, Option<f64>)>) {
    let own = || frozen.points.iter().zip(standings).zip(rows).filter(|((point, _), _)| point.same_as.is_none());
    if frozen.early_stop.is_none() {
        return (None, own().map(|((point, _), row)| (point.values.clone(), row.objective)).collect());
    }
    let mut steps: Vec<u64> = own().filter_map(|((point, _), _)| point.rungs.first().copied()).collect();
    steps.dedup();
    let first = |point: &PlannedPoint, standing: &Option<PointProgress>| {
        let finding = standing.as_ref()?.finding(*point.rungs.first()?, point.steps)?;
        if let SegmentResult::Value(value) = finding { Some(value) } else { None }
    };
    let one = if let [step] = steps.as_slice() { Some(*step) } else { None };
    (one, own().map(|((point, standing), _)| (point.values.clone(), first(point, standing))).collect())
}

#[cfg(test)]
mod tests {
    use super::super::spec::Goal;
    use super::*;

    fn measured(objective: Objective, text: &str, rungs: &[u64]) -> RungValues {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(METRICS);
        std::fs::write(&path, text).unwrap();
        RungValues::read(&path, objective, rungs)
    }

    fn standing(status: RunStatus, measured: RungValues) -> PointProgress {
        PointProgress {
            id: "a".into(),
            path: PathBuf::new(),
            status,
            held: false,
            error: None,
            not_finite: false,
            seconds: None,
            checkpoint: Some(5),
            measured,
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

    fn value(metric: ObjectiveMetric, at: MeasurementChoice, until: u64) -> f64 {
        let objective = Objective { metric, goal: metric.goal(), at };
        measured(objective, LINES, &[until]).rungs[0].value
    }

    #[test]
    fn the_last_and_the_best_of_what_was_measured_until_then() {
        assert_eq!(value(ObjectiveMetric::ValLoss, MeasurementChoice::Last, 4), 2.5);
        assert_eq!(value(ObjectiveMetric::ValLoss, MeasurementChoice::Best, 4), 2.0);
        assert_eq!(value(ObjectiveMetric::ValLoss, MeasurementChoice::Last, 3), 2.0);
        assert!(
            value(ObjectiveMetric::ValLoss, MeasurementChoice::Last, 1).is_nan(),
            "not the one before the first step"
        );
        assert_eq!(value(ObjectiveMetric::TrainLoss, MeasurementChoice::Last, 4), 3.5);
        assert_eq!(
            value(ObjectiveMetric::TrainLoss, MeasurementChoice::Best, 4),
            3.0,
            "what is no number is not the best"
        );
        assert_eq!(value(ObjectiveMetric::TokensPerSecond, MeasurementChoice::Last, 3), 30.0, "the median");
        assert!(value(ObjectiveMetric::HellaswagAcc, MeasurementChoice::Last, 4).is_nan());
    }

    #[test]
    fn steps_count_once_they_are_done_measured_and_saved() {
        let objective =
            Objective { metric: ObjectiveMetric::ValLoss, goal: Goal::Minimize, at: MeasurementChoice::Last };
        let rungs = [4, 5, 6];
        let of = |status| standing(status, measured(objective, LINES, &rungs));
        let found = |status, until| of(status).finding(until, 6);
        assert_eq!(found(RunStatus::Running, 4), Some(SegmentResult::Value(2.5)), "whatever became of it");
        assert_eq!(found(RunStatus::Interrupted, 5), None, "not evaluated there");
        assert_eq!(found(RunStatus::Interrupted, 6), None);
        assert_eq!(found(RunStatus::Done, 6), Some(SegmentResult::Value(2.5)));
        let until_then = LINES.split("{\"kind\":\"eval\",\"step\":4").next().unwrap();
        let before = standing(RunStatus::Running, measured(objective, until_then, &rungs));
        assert_eq!(before.finding(4, 6), None, "the step is done, its evaluation is not");
        for checkpoint in [None, Some(3)] {
            let unsaved = PointProgress { checkpoint, ..of(RunStatus::Failed) };
            assert_eq!(unsaved.finding(4, 6), None, "measured, and lost");
        }
    }

    #[test]
    fn only_failures_that_would_come_again_are_findings() {
        let objective =
            Objective { metric: ObjectiveMetric::ValLoss, goal: Goal::Minimize, at: MeasurementChoice::Last };
        let failed = standing(RunStatus::Failed, measured(objective, LINES, &[4, 6]));
        assert_eq!(failed.finding(6, 6), None, "a full disk, say");
        let diverged = PointProgress { not_finite: true, ..failed };
        assert_eq!(diverged.finding(4, 6), Some(SegmentResult::Value(2.5)));
        assert_eq!(diverged.finding(6, 6), Some(SegmentResult::Failed));
    }
}
