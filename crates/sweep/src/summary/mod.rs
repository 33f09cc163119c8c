//! The results of a sweep so far: the row of each point, the importance of the parameters, and whether anything is left to do.

mod caveat;
mod csv;
mod importance;
mod picked;
mod validation_use;

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;

use self::caveat::{find_caveats, find_different_facts, find_shared_text};
use self::validation_use::validation_hashes;
use crate::ladder::LadderOutcome;
use crate::points::PointValues;
use crate::progress::{DuePoints, PointProgress, SweepProgress};
use crate::record::{PlannedPoint, SweepRecord, sweep_dir};
use crate::results::{PointStatus, ResultsRow, SweepResults};
use crate::schedule::{DroppedSetting, SegmentResult};
use crate::spec::Milestone;
use crate::verdict::{SweepVerdict, rank_settings};
use runner_plan::comparability::find_incomparable;
use runner_record::manifest::RunStatus;
use runner_spec::format::counted;
use runner_spec::measure::{Measure, Measured};

pub use self::caveat::BestPointCaveat;
pub use self::importance::{AxisNote, DivergedValue, Importance, axis_notes, importance};
pub use self::picked::{PickedFrom, PickedSettings};
pub use self::validation_use::ValidationUse;

/// The results of a sweep so far.
#[derive(Debug)]
pub struct SweepSummary {
    pub results: SweepResults,
    /// What the results show.
    pub verdict: SweepVerdict,
    /// What must be known of the leading setting before it is believed, apart from the noise.
    pub caveats: Vec<BestPointCaveat>,
    /// The law of a ladder, which is what its results show; `None` for a sweep.
    pub ladder: Option<LadderOutcome>,
    pub importance: Vec<Importance>,
    /// The parameters that are constant, or whose importance cannot be separated from that of a different one.
    pub axis_notes: Vec<AxisNote>,
    /// The milestone at which importance compares the points, such as `100 steps`, unless it compares them at the end.
    pub measured_at: Option<String>,
    /// The content hashes of the validation data by which points are compared; none if they are compared by something else.
    pub validation_hashes: BTreeSet<String>,
    /// True if nothing is left to do.
    pub is_finished: bool,
    /// Files that cannot be read, each in one sentence.
    pub problems: Vec<String>,
}

/// The numbers of the points of a sweep by status. They add up to all points.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PointCounts {
    /// The points that did all their steps.
    pub done: usize,
    /// The points that early stopping ended.
    pub stopped: usize,
    /// The points that early stopping has not promoted so far. There are none once the sweep is finished.
    pub judged: usize,
    pub failed: usize,
    pub running: usize,
    pub interrupted: usize,
    /// The points that have no run yet.
    pub queued: usize,
    /// The points whose run was removed.
    pub removed: usize,
    /// The points that are the same run as another point.
    pub duplicate: usize,
}

impl PointCounts {
    /// The numbers with their names, in the order in which they are shown.
    #[must_use]
    pub fn named(self) -> [(usize, &'static str); 9] {
        let Self { done, stopped, judged, failed, running, interrupted, queued, removed, duplicate } = self;
        [
            (done, "done"),
            (stopped, "stopped early"),
            (judged, "judged"),
            (failed, "failed"),
            (running, "running"),
            (interrupted, "interrupted"),
            (queued, "queued"),
            (removed, "removed"),
            (duplicate, "duplicate"),
        ]
    }
}

impl SweepSummary {
    /// Summarizes the sweep in the folder `path`.
    #[must_use]
    pub fn new(path: &Path, record: &SweepRecord, progress: &SweepProgress) -> Self {
        let DuePoints { is_finished, due } = progress.due_points(record);
        let dropped = progress.dropped_settings(record);
        let mut rows = rows(record, progress, &due);
        mark_race_ends(record, &dropped, is_finished, &mut rows);
        let mut problems = progress.problems.clone();
        // The axes are in the copy of the sweep file alone.
        let axes = sweep_dir::read_copy(path).map_or_else(
            |error| {
                problems.push(format!("the importance of the parameters is unknown: {error}"));
                Vec::new()
            },
            |copy| copy.axes,
        );
        let (measured_at, measured) = comparable_results(record, progress);
        let incomparable = find_incomparable_points(record, progress, &rows);
        let measured = if incomparable.is_some() { Vec::new() } else { measured };
        let mut results = SweepResults::new(record.objective.clone(), rows, incomparable);
        let verdict = SweepVerdict::new(record, &results, &dropped, is_finished);
        if record.is_ladder {
            results.sort_by_size(record);
        } else if verdict.has_seeds() {
            verdict.sort_rows(&mut results);
        }
        // The rungs of a ladder differ in their size, and nothing in them is to be chosen.
        let (axis_notes, importance) = if record.is_ladder {
            (Vec::new(), Vec::new())
        } else {
            let seeds: Vec<&str> = record.seeds.iter().map(String::as_str).collect();
            (axis_notes(&axes, &measured, &seeds), importance(&axes, record.objective.goal, &measured, &seeds))
        };
        Self {
            ladder: LadderOutcome::new(record, &results),
            axis_notes,
            importance,
            // The largest rung of a ladder is not meant to be inside of a range.
            caveats: find_caveats(&results, verdict.leader().filter(|_| !record.is_ladder))
                .into_iter()
                .chain(find_different_facts(progress))
                .chain(find_shared_text(progress))
                .collect(),
            verdict,
            results,
            measured_at,
            validation_hashes: validation_hashes(record, progress),
            is_finished,
            problems,
        }
    }

    /// Counts how many settings have been compared on the validation data in the folder of runs of the sweep in `path`, all of whose
    /// manifests it reads; `None` if the folder cannot be read, or the points are compared by something else, or not at all, as those of a
    /// ladder.
    #[must_use]
    pub fn count_validation_use(&self, path: &Path) -> Option<ValidationUse> {
        let is_chosen_by_it = self.ladder.is_none() && !self.validation_hashes.is_empty();
        is_chosen_by_it.then(|| ValidationUse::count(&sweep_dir::runs_folder(path), &self.validation_hashes))?
    }

    /// True if a point has failed.
    #[must_use]
    pub fn has_failed_points(&self) -> bool {
        self.results.rows.iter().any(|row| row.status == PointStatus::Failed)
    }

    /// Marks the points of these numbers as failed if they have no run that could record it.
    pub fn mark_failed(&mut self, points: &[usize]) {
        for row in self.results.rows.iter_mut().filter(|row| points.contains(&row.point)) {
            if matches!(row.status, PointStatus::Queued | PointStatus::Removed) {
                row.status = PointStatus::Failed;
            }
        }
    }

    /// Counts the points.
    #[must_use]
    pub fn counts(&self) -> PointCounts {
        let mut counts = PointCounts::default();
        for row in &self.results.rows {
            let count = match row.status {
                PointStatus::Done => &mut counts.done,
                // The point may still be promoted until the sweep is finished.
                PointStatus::Stopped if !self.is_finished && row.run.is_some() => &mut counts.judged,
                PointStatus::Stopped => &mut counts.stopped,
                PointStatus::Failed => &mut counts.failed,
                PointStatus::Running => &mut counts.running,
                PointStatus::Interrupted => &mut counts.interrupted,
                PointStatus::Queued => &mut counts.queued,
                PointStatus::Removed => &mut counts.removed,
                PointStatus::Duplicate => &mut counts.duplicate,
            };
            *count += 1;
        }
        counts
    }

    /// The numbers of the points that early stopping ended, ascending. They are final only once the sweep is finished; before, there
    /// are none.
    #[must_use]
    pub fn stopped_points(&self) -> Vec<usize> {
        let rows = self.results.rows.iter().filter(|row| self.is_finished && row.status == PointStatus::Stopped);
        let mut points: Vec<usize> = rows.map(|row| row.point).collect();
        points.sort_unstable();
        points
    }
}

/// The row of each point. `due`: positions of the points that are due now.
fn rows(record: &SweepRecord, progress: &SweepProgress, due: &[usize]) -> Vec<ResultsRow> {
    let points = record.points.iter().zip(&progress.points).enumerate();
    let own: Vec<ResultsRow> = points
        .map(|(i, (point, run))| match run {
            Some(run) => row(point, run, &record.objective.metric, due.contains(&i)),
            None if progress.removed.contains(&i) => empty_row(point, PointStatus::Removed),
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

/// Marks the points that a race no longer trains: those of settings that dropped out, and the other seeds of the only one that is left.
fn mark_race_ends(
    record: &SweepRecord,
    dropped: &[(usize, DroppedSetting)],
    is_finished: bool,
    rows: &mut [ResultsRow],
) {
    if record.race.is_none() {
        return;
    }
    let settings = record.settings();
    let out: BTreeSet<usize> =
        dropped.iter().flat_map(|(setting, _)| settings[*setting].points.iter().map(|member| member.point)).collect();
    let is_unstarted = |row: &ResultsRow| matches!(row.status, PointStatus::Queued | PointStatus::Removed);
    for row in rows.iter_mut().filter(|row| is_unstarted(row) && (is_finished || out.contains(&row.point))) {
        row.status = PointStatus::Stopped;
    }
}

/// The row of a point without a run.
fn empty_row(point: &PlannedPoint, status: PointStatus) -> ResultsRow {
    ResultsRow {
        point: point.index,
        values: point.values.clone(),
        status,
        steps: 0,
        tokens: Some(0),
        flops: Some(0.0),
        objective: None,
        diverged: false,
        run: None,
        seconds: None,
        own_seconds: None,
        evaluated: Measured::default(),
        measured_on: None,
        tokens_per_second: None,
        mfu: None,
    }
}

fn row(point: &PlannedPoint, run: &PointProgress, metric: &Measure, is_due: bool) -> ResultsRow {
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
        _ if last_value.is_some() && !is_due => PointStatus::Stopped,
        _ => PointStatus::Interrupted,
    };
    let measured = last_value.filter(|(_, value)| value.is_finite() && status != PointStatus::Failed);
    let evaluated = measured.map(|(until, _)| run.evaluated(until)).unwrap_or_default();
    let factor = metric.error_factor(evaluated.val_loss(), evaluated.get(metric));
    let measured_on = evaluated.val_sample().zip(factor).map(|(sample, factor)| sample.scaled(factor));
    let steps = run.steps.min(point.steps);
    ResultsRow {
        steps,
        tokens: Some(steps.saturating_mul(point.tokens_per_step)),
        flops: Some(steps as f64 * point.flops_per_step),
        objective: measured.map(|(_, value)| value),
        diverged: run.has_diverged(point.steps),
        run: Some(run.id.clone()),
        seconds: run.seconds,
        own_seconds: run.own_seconds,
        measured_on,
        evaluated,
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
    let rows = rows(record, progress, &[]);
    if find_incomparable_points(record, progress, &rows).is_some() {
        return None;
    }
    let results = SweepResults::new(record.objective.clone(), rows, None);
    let (leader, _) = rank_settings(&record.compared_settings(), &results, &progress.dropped_settings(record), false)
        .into_iter()
        .next()?;
    let sample = leader.sample?;
    Some(LeadingSetting { point: *leader.points.first()?, mean: sample.mean, seeds: sample.n })
}

/// The reason why the objectives of the points that have one do not compare; `None` if they do.
fn find_incomparable_points(record: &SweepRecord, progress: &SweepProgress, rows: &[ResultsRow]) -> Option<String> {
    let measured = rows.iter().zip(&progress.points).filter(|(row, _)| row.objective.is_some());
    let bases = measured.filter_map(|(row, run)| Some((format!("point {}", row.point), run.as_ref()?.basis.as_ref()?)));
    find_incomparable(bases, &record.objective.metric.quantity())
}

/// The values and results of the points without duplicates, NaN for a point that diverged. Results after different numbers of steps do
/// not compare: with early stopping the results are those at the first rung, which is returned with them, and there are none if first rungs
/// of milestones in steps differ.
fn comparable_results(
    record: &SweepRecord,
    progress: &SweepProgress,
) -> (Option<String>, Vec<(PointValues, Option<f64>)>) {
    let distinct = || record.points.iter().zip(&progress.points).filter(|(point, _)| point.same_as.is_none());
    let mut first_rungs: Vec<u64> = distinct().filter_map(|(point, _)| point.rungs.first().copied()).collect();
    first_rungs.dedup();
    let measured_at = match (record.early_stop.map(|asha| asha.first), &first_rungs[..]) {
        (None, _) => None,
        (Some(Milestone::MinSteps(_)), [step]) => Some(counted(*step, "step")),
        (Some(Milestone::MinSteps(_)), _) => return (None, Vec::new()),
        (Some(first), _) => Some(format!("{} {}", first.amount(), first.unit())),
    };
    let is_at_rung = measured_at.is_some();
    let until = |point: &PlannedPoint| point.rungs.first().copied().filter(|_| is_at_rung).unwrap_or(point.steps);
    let result = |point: &PlannedPoint, run: &PointProgress| {
        if run.has_diverged(point.steps) {
            return Some(f64::NAN);
        }
        match run.result(until(point), point.steps)? {
            SegmentResult::Value(value) => Some(value),
            SegmentResult::Failed => Some(f64::NAN),
        }
    };
    let results =
        distinct().map(|(point, run)| (point.values.clone(), run.as_ref().and_then(|run| result(point, run))));
    (measured_at, results.collect())
}
