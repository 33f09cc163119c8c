//! The table of a sweep's results: one row for each point, the best point first.

use std::sync::Arc;

use serde::Serialize;

use crate::points::{PointValues, ordered};
use crate::record::{PlannedPoint, SweepRecord};
use crate::spec::Objective;
use runner_spec::measure::{LossSample, Measured};
use runner_stats::RowLosses;

runner_record::named_enum! {
    /// The status of a point.
    pub enum PointStatus {
        /// The run has done all its steps.
        Done = "done",
        /// Early stopping ended the point.
        Stopped = "stopped",
        /// Early stopping has not promoted the point so far, and still may.
        Judged = "judged",
        Failed = "failed",
        Running = "running",
        /// The point's run neither trains nor is finished.
        Interrupted = "interrupted",
        /// The point has no run.
        Queued = "queued",
        /// The point is the same run as another point.
        Duplicate = "duplicate",
    }
}

impl PointStatus {
    /// The status as a table shows it.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::Stopped => "stopped early",
            Self::Duplicate => "the same as another",
            other => other.name(),
        }
    }
}

/// The result of a point.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResultsRow {
    /// The number of the point, from 1.
    pub point: usize,
    #[serde(with = "ordered")]
    pub values: PointValues,
    pub status: PointStatus,
    /// The number of optimizer steps done.
    pub steps: u64,
    /// Tokens of these steps, padding included, and their FLOPs as counted for MFU; `None` in comparisons of runs without a sweep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flops: Option<f64>,
    pub objective: Option<f64>,
    /// True if training ended with a number that is not finite, or the objective is not finite.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub diverged: bool,
    /// The id of the point's run.
    pub run: Option<String>,
    /// Seconds of training, steps inherited from a trunk included; and the seconds of the run itself, whose sum is the time of all points.
    pub seconds: Option<f64>,
    pub own_seconds: Option<f64>,
    /// The evaluation that gave the objective; empty if it is not known, or no evaluation did.
    #[serde(flatten)]
    pub evaluated: Measured,
    /// The validation rows that gave the objective, with its standard error over them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_on: Option<LossSample>,
    /// The results of the rows, or of the items of the task, that gave the objective; `None` if the run does not keep them.
    #[serde(skip)]
    pub rows: Option<Arc<RowLosses>>,
    /// The speed of the run, once a process has stopped working on it: the median over its steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// The median share of the device's peak FLOP/s that the model used; `None` if the peak is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
}

impl ResultsRow {
    /// The row of a point about which nothing more is known.
    #[must_use]
    pub fn new(point: usize, values: PointValues, status: PointStatus) -> Self {
        Self {
            point,
            values,
            status,
            steps: 0,
            tokens: None,
            flops: None,
            objective: None,
            diverged: false,
            run: None,
            seconds: None,
            own_seconds: None,
            evaluated: Measured::default(),
            measured_on: None,
            rows: None,
            tokens_per_second: None,
            mfu: None,
        }
    }
}

/// The rows, sorted by the objective: the best first, equal ones by their number. Rows of points that did not do all their steps come
/// after those of points that did, because their objectives do not compare; then rows without an objective. Rows that do not compare at
/// all are sorted by their number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepResults {
    pub objective: Objective,
    pub rows: Vec<ResultsRow>,
    /// The reason why the objectives of the points do not compare, so that none is the best.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomparable: Option<String>,
}

impl SweepResults {
    /// The results of `rows`. `incomparable` is the reason why their objectives do not compare, if they do not.
    #[must_use]
    pub fn new(objective: Objective, mut rows: Vec<ResultsRow>, incomparable: Option<String>) -> Self {
        let done: Vec<Option<String>> =
            rows.iter().filter(|row| row.status == PointStatus::Done).map(|row| row.run.clone()).collect();
        // A duplicate has the run of another point.
        let is_done = |row: &ResultsRow| {
            row.status == PointStatus::Done || row.status == PointStatus::Duplicate && done.contains(&row.run)
        };
        rows.sort_by(|a, b| {
            if incomparable.is_some() {
                return a.point.cmp(&b.point);
            }
            let valued = match (a.objective, b.objective) {
                (Some(x), Some(y)) => {
                    let is_worse = |row: &ResultsRow, value: f64| (value.is_nan(), !is_done(row));
                    is_worse(a, x).cmp(&is_worse(b, y)).then(objective.goal().order(x, y))
                }
                (x, y) => x.is_none().cmp(&y.is_none()),
            };
            valued.then(a.point.cmp(&b.point))
        });
        Self { objective, rows, incomparable }
    }

    /// Sorts the rows of the ladder `record` by the FLOPs of their points, then by number.
    pub(crate) fn sort_by_size(&mut self, record: &SweepRecord) {
        let flops = |row: &ResultsRow| record.point(row.point).map_or(f64::INFINITY, PlannedPoint::flops);
        self.rows.sort_by(|a, b| flops(a).total_cmp(&flops(b)).then(a.point.cmp(&b.point)));
    }

    /// The first point among those that did all their steps, or else among all that have an objective. The objective of a stopped point
    /// was measured after fewer steps, so it does not compare. `None` too if the objectives do not compare. Whether the point is better
    /// than others is for a [`SweepVerdict`](crate::verdict::SweepVerdict) to say.
    #[must_use]
    pub fn first_measured(&self) -> Option<&ResultsRow> {
        if self.incomparable.is_some() {
            return None;
        }
        let mut valued = self.rows.iter().filter(|row| row.objective.is_some_and(|y| !y.is_nan()));
        valued.clone().find(|row| row.status == PointStatus::Done).or_else(|| valued.next())
    }

    /// What the results after all steps were measured on: the fewest tokens and rows, and the largest standard error. `None` if there are
    /// none, or a run did not record it.
    #[must_use]
    pub fn measured_on(&self) -> Option<LossSample> {
        let is_done = |row: &&ResultsRow| row.status == PointStatus::Done && row.objective.is_some();
        let samples = self.rows.iter().filter(is_done).map(|row| row.measured_on).collect::<Option<Vec<_>>>()?;
        samples.into_iter().reduce(|a, b| LossSample {
            tokens: a.tokens.min(b.tokens),
            rows: a.rows.min(b.rows),
            standard_error: a.standard_error.zip(b.standard_error).map(|(a, b)| a.max(b)),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;
    use runner_spec::measure::Measure;

    pub(crate) fn row(point: usize, status: PointStatus, objective: Option<f64>) -> ResultsRow {
        let values = vec![("lr".to_owned(), json!(1e-5)), ("decay".to_owned(), json!("=1+1, \"x\""))];
        ResultsRow {
            steps: 10,
            tokens: Some(80),
            objective,
            run: Some(format!("run-{point}")),
            seconds: Some(1.5),
            own_seconds: Some(0.5),
            ..ResultsRow::new(point, values, status)
        }
    }

    pub(crate) fn results(metric: Measure, rows: Vec<ResultsRow>) -> SweepResults {
        SweepResults::new(Objective { metric, ..crate::testing::sweep().objective }, rows, None)
    }

    #[test]
    fn the_best_is_first_and_rows_without_a_result_are_last() {
        let rows = vec![
            row(1, PointStatus::Failed, None),
            row(2, PointStatus::Done, Some(f64::NAN)),
            row(3, PointStatus::Done, Some(2.0)),
            row(4, PointStatus::Stopped, Some(1.0)),
            row(6, PointStatus::Done, Some(1.5)),
            row(5, PointStatus::Done, Some(1.5)),
            row(7, PointStatus::Queued, None),
        ];
        let points = |r: &SweepResults| r.rows.iter().map(|row| row.point).collect::<Vec<_>>();
        let down = results(Measure::VAL_LOSS, rows.clone());
        assert_eq!(points(&down), [5, 6, 3, 4, 2, 1, 7], "4 was measured after fewer steps");
        assert_eq!(down.first_measured().unwrap().point, 5, "4 was stopped early");
        let up = results(Measure::TOKENS_PER_SECOND, rows.clone());
        assert_eq!(points(&up), [3, 5, 6, 4, 2, 1, 7]);
        assert_eq!(up.first_measured().unwrap().point, 3);
        assert_eq!(results(Measure::VAL_LOSS, rows[..2].to_vec()).first_measured(), None);
        assert_eq!(results(Measure::VAL_LOSS, vec![rows[3].clone()]).first_measured().unwrap().point, 4);
    }

    #[test]
    fn none_is_best_of_rows_that_do_not_compare() {
        let rows = vec![row(2, PointStatus::Done, Some(1.0)), row(1, PointStatus::Done, Some(2.0))];
        let table = results(Measure::VAL_LOSS, rows);
        let table =
            SweepResults::new(table.objective, table.rows, Some("2 and 1 have different tokenizers".to_owned()));
        assert_eq!(table.first_measured(), None);
        assert_eq!(table.rows.iter().map(|row| row.point).collect::<Vec<_>>(), [1, 2]);
        let text = serde_json::to_string(&table).unwrap();
        assert!(text.contains("different tokenizers"), "{text}");
    }

    #[test]
    fn json_keeps_the_order_of_the_values() {
        let mut rows = vec![row(1, PointStatus::Done, Some(1.0))];
        rows[0].values.reverse();
        rows[0].values.push(("a".to_owned(), json!([1])));
        let table = results(Measure::VAL_LOSS, rows);
        let text = serde_json::to_string(&table).unwrap();
        assert!(text.contains(r#""values":{"decay":"=1+1, \"x\"","lr":0.00001,"a":[1]}"#), "{text}");
    }
}
