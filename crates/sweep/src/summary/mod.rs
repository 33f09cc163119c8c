//! The results of a sweep so far: the row of each point, what the rows show, and whether anything is left to do.

mod csv;
mod picked;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::ladder::LadderOutcome;
use crate::progress::{PointProgress, SweepProgress};
use crate::record::{PlannedPoint, SweepRecord, sweep_dir};
use crate::results::{PointStatus, ResultsRow, SweepResults};
use crate::schedule::SegmentResult;
use crate::verdict::{Background, SweepVerdict, rank_settings};
use runner_plan::MeasurementBasis;
use runner_plan::comparability::find_incomparable;
use runner_record::RecordError;
use runner_record::manifest::RunStatus;
use runner_spec::measure::Measure;

pub use self::picked::{PickedSettings, SweptRun};

/// The results of a sweep so far.
#[derive(Debug, Serialize)]
pub struct SweepSummary {
    /// The law of a ladder, which is what its results show; `None` for a sweep.
    #[serde(flatten)]
    pub ladder: Option<LadderOutcome>,
    pub results: SweepResults,
    /// What the results show.
    pub verdict: SweepVerdict,
    /// True if nothing is left to do.
    #[serde(skip)]
    pub is_finished: bool,
    /// Files that cannot be read, and evaluated text that was trained on, each in one sentence.
    #[serde(skip)]
    pub problems: Vec<String>,
}

/// A sweep, read from its folder and the run directories of its points.
#[derive(Debug)]
pub struct ReadSweep {
    pub path: PathBuf,
    pub record: SweepRecord,
    pub progress: SweepProgress,
    pub summary: SweepSummary,
}

impl ReadSweep {
    /// Reads the sweep in `path`.
    ///
    /// # Errors
    /// If its record cannot be read.
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        let record = sweep_dir::read_record(path)?;
        let progress = SweepProgress::read(&sweep_dir::runs_folder(path), &record);
        let summary = SweepSummary::new(&record, &progress);
        Ok(Self { path: path.to_owned(), record, progress, summary })
    }
}

impl SweepSummary {
    /// Summarizes the sweep of `record`.
    #[must_use]
    pub fn new(record: &SweepRecord, progress: &SweepProgress) -> Self {
        let due = progress.due_points(record);
        let is_finished = due.is_none();
        let rows = rows(record, progress, &due.unwrap_or_default(), is_finished);
        let incomparable = find_incomparable_points(record, progress, &rows);
        let mut results = SweepResults::new(record.objective.clone(), rows, incomparable);
        let verdict = SweepVerdict::new(record, &results, is_finished);
        if record.is_ladder {
            results.sort_by_size(record);
        } else if verdict.has_seeds() {
            verdict.sort_rows(&mut results);
        }
        let ladder = LadderOutcome::new(record, &results);
        let bases = progress.points.iter().flatten().filter_map(|run| run.basis.as_ref());
        let shared_text: BTreeSet<String> = bases.flat_map(MeasurementBasis::overlap_warnings).collect();
        let problems = progress.problems.iter().cloned().chain(shared_text).collect();
        Self { ladder, results, verdict, is_finished, problems }
    }

    /// True if a point has failed.
    #[must_use]
    pub fn has_failed_points(&self) -> bool {
        self.results.rows.iter().any(|row| row.status == PointStatus::Failed)
    }

    /// Marks the points of these numbers as failed if they have no run that could record it.
    pub fn mark_failed(&mut self, points: &[usize]) {
        let rows = self.results.rows.iter_mut();
        for row in rows.filter(|row| points.contains(&row.point) && row.status == PointStatus::Queued) {
            row.status = PointStatus::Failed;
        }
    }

    /// The number of points of each status. They add up to all points.
    #[must_use]
    pub fn counts(&self) -> [(PointStatus, usize); PointStatus::ALL.len()] {
        let count = |status: PointStatus| self.results.rows.iter().filter(|row| row.status == status).count();
        PointStatus::ALL.map(|status| (status, count(status)))
    }
}

/// The row of each point. `due`: positions of the points that are due now.
fn rows(record: &SweepRecord, progress: &SweepProgress, due: &[usize], is_finished: bool) -> Vec<ResultsRow> {
    let points = record.points.iter().zip(&progress.points).enumerate();
    let own: Vec<ResultsRow> = points
        .map(|(i, (point, run))| match run {
            Some(run) => row(point, run, &record.objective.metric, due.contains(&i), is_finished),
            None => empty_row(point, PointStatus::Queued),
        })
        .collect();
    let shown = |(i, point): (usize, &PlannedPoint)| {
        let same = point.same_as.and_then(|index| record.points.iter().position(|p| p.index == index));
        let row = &own[same.unwrap_or(i)];
        let status = if same.is_some() { PointStatus::Duplicate } else { row.status };
        ResultsRow { point: point.index, values: point.values.clone(), status, ..row.clone() }
    };
    record.points.iter().enumerate().map(shown).collect()
}

/// The row of a point without a run.
fn empty_row(point: &PlannedPoint, status: PointStatus) -> ResultsRow {
    let row = ResultsRow::new(point.index, point.values.clone(), status);
    ResultsRow { tokens: Some(0), flops: Some(0.0), ..row }
}

fn row(point: &PlannedPoint, run: &PointProgress, metric: &Measure, is_due: bool, is_finished: bool) -> ResultsRow {
    let value = |until: u64| match run.result(until, point.steps) {
        Some(SegmentResult::Value(value)) => Some((until, value)),
        _ => None,
    };
    // A value after fewer steps is not that of a finished run.
    let last_value = match run.status {
        RunStatus::Done => value(point.steps),
        _ => point.rungs.iter().rev().find_map(|&until| value(until)),
    };
    let status = match run.status {
        RunStatus::Done => PointStatus::Done,
        RunStatus::Failed => PointStatus::Failed,
        _ if run.is_held => PointStatus::Running,
        _ if last_value.is_some() && is_finished => PointStatus::Stopped,
        _ if last_value.is_some() && !is_due => PointStatus::Judged,
        _ => PointStatus::Interrupted,
    };
    let measured = last_value.filter(|(_, value)| value.is_finite() && status != PointStatus::Failed);
    let (evaluated, rows) = measured.map(|(until, _)| run.evaluated(until)).unwrap_or_default();
    let factor = metric.error_factor(evaluated.val_loss(), evaluated.get(metric));
    let measured_on = evaluated.val_sample().zip(factor).map(|(sample, factor)| sample.scaled(factor));
    let steps = run.steps.min(point.steps);
    ResultsRow {
        steps,
        tokens: Some(point.pace.tokens_after(steps) as u64),
        flops: Some(point.pace.flops_after(steps)),
        objective: measured.map(|(_, value)| value),
        diverged: run.has_diverged(point.steps),
        run: Some(run.id.clone()),
        seconds: run.seconds,
        own_seconds: run.own_seconds,
        measured_on,
        rows,
        evaluated: evaluated.with_errors(),
        tokens_per_second: run.tokens_per_second,
        mfu: run.mfu,
        ..empty_row(point, status)
    }
}

/// The setting with the best mean so far, among those whose points did all their steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LeadingSetting {
    /// The first point of the setting.
    pub point: usize,
    pub mean: f64,
    /// The number of seeds of the mean.
    pub seeds: usize,
}

/// The setting that leads; `None` if no result compares, or the settings are the rungs of a ladder.
#[must_use]
pub fn leading_setting(record: &SweepRecord, progress: &SweepProgress) -> Option<LeadingSetting> {
    if record.is_ladder {
        return None;
    }
    let rows = rows(record, progress, &[], false);
    if find_incomparable_points(record, progress, &rows).is_some() {
        return None;
    }
    let (results, settings) = (SweepResults::new(record.objective.clone(), rows, None), record.settings());
    let leader = rank_settings(&settings, &results, &Background::of_sweep(record)).settings.into_iter().next()?;
    let sample = leader.sample?;
    Some(LeadingSetting { point: *leader.points.first()?, mean: sample.mean, seeds: sample.n })
}

/// The reason why the objectives of the points that have one do not compare; `None` if they do.
fn find_incomparable_points(record: &SweepRecord, progress: &SweepProgress, rows: &[ResultsRow]) -> Option<String> {
    let measured = rows.iter().zip(&progress.points).filter(|(row, _)| row.objective.is_some());
    let bases = measured.filter_map(|(row, run)| Some((format!("point {}", row.point), run.as_ref()?.basis.as_ref()?)));
    find_incomparable(bases, &record.objective.metric.quantity())
}
