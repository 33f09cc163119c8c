//! The table of a sweep's results: one row for each point, the best point first.

use std::iter::once;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::point::{PointValues, ordered, value_text};
use super::record::{PlannedPoint, SweepRecord};
use super::spec::Objective;
use super::verdict::SweepVerdict;
use runner_spec::measure::{LossSample, Measure, Measured};

runner_record::named_enum! {
    /// The status of a point.
    pub enum PointStatus {
        /// The point has no run, and never had one.
        Queued = "queued",
        /// The point had a run, which was removed: the sweep trains the point again.
        Removed = "removed",
        Running = "running",
        /// The point's run neither trains nor is finished.
        Interrupted = "interrupted",
        /// The run has done all its steps.
        Done = "done",
        /// The point was judged and not promoted.
        Stopped = "stopped",
        Failed = "failed",
        /// The point is the same run as another point.
        Duplicate = "duplicate",
    }
}

/// The result of a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResultsRow {
    /// The number of the point, from 1.
    pub point: usize,
    #[serde(with = "ordered")]
    pub values: PointValues,
    pub status: PointStatus,
    /// The number of optimizer steps done.
    pub steps: u64,
    /// Tokens of these steps, padding included, and their FLOPs as counted for MFU; `None` in comparisons of runs without a sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops: Option<f64>,
    pub objective: Option<f64>,
    /// True if training ended with a number that is not finite, or the objective is not finite.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub diverged: bool,
    /// The id of the point's run.
    pub run: Option<String>,
    /// Seconds of training, steps inherited from a trunk included; and the seconds of the run itself, whose sum is the time of all points.
    pub seconds: Option<f64>,
    #[serde(default)]
    pub own_seconds: Option<f64>,
    /// The evaluation that gave the objective; empty if it is not known, or no evaluation did.
    #[serde(flatten)]
    pub evaluated: Measured,
    /// The validation rows that gave the objective, with its standard error over them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_on: Option<LossSample>,
    /// The speed of the run, once a process has stopped working on it: the median over its steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// The median share of the device's peak FLOP/s that the model used; `None` if the peak is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
}

/// The rows, sorted by the objective: the best first, equal ones by their number. Rows of points that did not do all their steps come
/// after those of points that did, because their objectives do not compare; then rows without an objective. Rows that do not compare at
/// all are sorted by their number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepResults {
    pub objective: Objective,
    pub rows: Vec<ResultsRow>,
    /// The reason why the objectives of the points do not compare, so that none is the best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
                    is_worse(a, x).cmp(&is_worse(b, y)).then(objective.goal.order(x, y))
                }
                (x, y) => x.is_none().cmp(&y.is_none()),
            };
            valued.then(a.point.cmp(&b.point))
        });
        Self { objective, rows, incomparable }
    }

    /// Sorts the rows by the rank of their settings, and those of a setting by their number.
    pub(super) fn sort_by_setting(&mut self, verdict: &SweepVerdict) {
        let rank = |row: &ResultsRow| verdict.settings.iter().position(|setting| setting.has_point(row.point));
        self.rows.sort_by_cached_key(|row| (rank(row).unwrap_or(usize::MAX), row.point));
    }

    /// Sorts the rows of the ladder `record` by the FLOPs of their points, then by number.
    pub(super) fn sort_by_size(&mut self, record: &SweepRecord) {
        let flops = |row: &ResultsRow| record.point(row.point).map_or(f64::INFINITY, PlannedPoint::flops);
        self.rows.sort_by(|a, b| flops(a).total_cmp(&flops(b)).then(a.point.cmp(&b.point)));
    }

    /// The first point among those that did all their steps, or else among all that have an objective. The objective of a stopped point
    /// was measured after fewer steps, so it does not compare. `None` too if the objectives do not compare. Whether the point is better
    /// than others is for a [`SweepVerdict`] to say.
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

    /// The table as CSV: a header and one line for each row, with the columns `point`, one for each name that varies, `status`,
    /// `steps_done`, `tokens_done`, `flops_done`, the metric, `seconds`, `own_seconds`, `run`, `val_tokens` and `standard_error` (those that
    /// the metric was measured on, and its error over their rows), and those of bits per byte, `tokens_per_second` and `mfu` that are
    /// not the metric.
    /// If settings of `verdict` have several seeds, the columns `setting` (its rank), `setting_mean`, `setting_half_width` (of the mean's
    /// interval), `difference_to_leader` and `adjusted_p` follow. Unknown values are empty. A name that is also another column gets the prefix `param.`. A text that a spreadsheet would take for a
    /// formula gets the prefix `'`.
    ///
    /// # Errors
    /// No input causes one.
    pub fn csv(&self, verdict: &SweepVerdict) -> Result<String, csv::Error> {
        let metric = &*self.objective.metric.key();
        let bits_per_byte = &*Measure::BITS_PER_BYTE.key();
        let measured = [bits_per_byte, "val_tokens", "standard_error", "tokens_per_second", "mfu"];
        let mut own =
            vec!["point", "status", "steps_done", "tokens_done", "flops_done", metric, "seconds", "own_seconds", "run"];
        own.extend(measured.iter().filter(|name| **name != metric));
        let of_setting = ["setting", "setting_mean", "setting_half_width", "difference_to_leader", "adjusted_p"];
        let of_setting = if verdict.has_seeds() { &of_setting[..] } else { &[] };
        own.extend(of_setting);
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in self.rows.iter().flat_map(|row| &row.values) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        let mut writer = csv::Writer::from_writer(Vec::new());
        let header = names.iter().map(|&n| if own.contains(&n) { format!("param.{n}") } else { escape_formula(n) });
        writer.write_record(once("point".to_owned()).chain(header).chain(own[1..].iter().map(|&n| n.to_owned())))?;
        for row in &self.rows {
            let value = |name: &&str| match row.values.iter().find(|(n, _)| n == name) {
                Some((_, Value::String(text))) => escape_formula(text),
                Some((_, other)) => value_text(other),
                None => String::new(),
            };
            let number =
                |x: Option<f64>| x.filter(|x| x.is_finite()).map_or_else(String::new, |x| value_text(&Value::from(x)));
            let rest = [
                row.status.name().to_owned(),
                row.steps.to_string(),
                row.tokens.map_or_else(String::new, |tokens| tokens.to_string()),
                number(row.flops),
                number(row.objective),
                number(row.seconds),
                number(row.own_seconds),
                row.run.as_deref().map(escape_formula).unwrap_or_default(),
            ];
            let tokens = row.measured_on.map_or_else(String::new, |sample| sample.tokens.to_string());
            let error = row.measured_on.and_then(|sample| sample.standard_error);
            let [bits, error, speed, mfu] =
                [row.evaluated.bits_per_byte(), error, row.tokens_per_second, row.mfu].map(number);
            let measured = measured.iter().zip([bits, tokens, error, speed, mfu]);
            let measured = measured.filter(|(name, _)| **name != metric).map(|(_, value)| value);
            let rank = verdict.settings.iter().position(|setting| setting.has_point(row.point));
            let setting = rank.map(|rank| &verdict.settings[rank]);
            let sample = setting.and_then(|setting| setting.sample);
            let comparison = setting.and_then(|setting| setting.comparison.as_ref());
            let cells = [
                rank.map_or_else(String::new, |rank| (rank + 1).to_string()),
                number(sample.map(|sample| sample.mean)),
                number(sample.and_then(|sample| Some(sample.interval?.half_width()))),
                number(comparison.map(|comparison| comparison.paired.difference)),
                number(
                    comparison.filter(|comparison| comparison.test.is_some()).map(|comparison| comparison.adjusted_p),
                ),
            ];
            let cells = cells.into_iter().take(of_setting.len());
            let first = once(row.point.to_string()).chain(names.iter().map(value));
            writer.write_record(first.chain(rest).chain(measured).chain(cells))?;
        }
        let bytes = writer.into_inner().map_err(|e| csv::Error::from(e.into_error()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// `text`, marked as text where a spreadsheet would compute it.
fn escape_formula(text: &str) -> String {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::spec::Goal;
    use super::super::verdict::Conclusion;
    use super::*;

    fn row(point: usize, status: PointStatus, objective: Option<f64>) -> ResultsRow {
        let values = vec![("lr".to_owned(), json!(1e-5)), ("decay".to_owned(), json!("=1+1, \"x\""))];
        ResultsRow {
            point,
            values,
            status,
            steps: 10,
            tokens: Some(80),
            flops: None,
            objective,
            diverged: false,
            run: Some(format!("run-{point}")),
            seconds: Some(1.5),
            own_seconds: Some(0.5),
            evaluated: Measured::default(),
            measured_on: None,
            tokens_per_second: None,
            mfu: None,
        }
    }

    fn results(goal: Goal, rows: Vec<ResultsRow>) -> SweepResults {
        SweepResults::new(Objective { goal, ..crate::testing::sweep().objective }, rows, None)
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
        let down = results(Goal::Minimize, rows.clone());
        assert_eq!(points(&down), [5, 6, 3, 4, 2, 1, 7], "4 was measured after fewer steps");
        assert_eq!(down.first_measured().unwrap().point, 5, "4 was stopped early");
        let up = results(Goal::Maximize, rows.clone());
        assert_eq!(points(&up), [3, 5, 6, 4, 2, 1, 7]);
        assert_eq!(up.first_measured().unwrap().point, 3);
        assert_eq!(results(Goal::Minimize, rows[..2].to_vec()).first_measured(), None);
        assert_eq!(results(Goal::Minimize, vec![rows[3].clone()]).first_measured().unwrap().point, 4);
    }

    #[test]
    fn none_is_best_of_rows_that_do_not_compare() {
        let rows = vec![row(2, PointStatus::Done, Some(1.0)), row(1, PointStatus::Done, Some(2.0))];
        let table = results(Goal::Minimize, rows);
        let table =
            SweepResults::new(table.objective, table.rows, Some("2 and 1 have different tokenizers".to_owned()));
        assert_eq!(table.first_measured(), None);
        assert_eq!(table.rows.iter().map(|row| row.point).collect::<Vec<_>>(), [1, 2]);
        let text = serde_json::to_string(&table).unwrap();
        assert!(
            text.contains("different tokenizers") && serde_json::from_str::<SweepResults>(&text).unwrap() == table,
            "{text}"
        );
    }

    fn no_settings() -> SweepVerdict {
        SweepVerdict {
            conclusion: Conclusion::NoResult,
            settings: Vec::new(),
            noise: None,
            row_noise: None,
            words: Vec::new(),
        }
    }

    #[test]
    fn csv_has_the_comparison_of_the_setting_of_each_point() {
        let points = [(json!(0.1), 1, 2.0), (json!(0.1), 2, 2.5), (json!(0.2), 1, 1.0), (json!(0.2), 2, 1.25)];
        let (record, table) = crate::testing::finished(&points);
        let verdict = SweepVerdict::new(&record, &table, &[], true);
        let text = table.csv(&verdict).unwrap();
        let header = "setting,setting_mean,setting_half_width,difference_to_leader,adjusted_p\n";
        assert!(text.lines().next().unwrap().ends_with(header.trim_end()), "{text}");
        let cells = |point: &str| -> Vec<&str> {
            let line = text.lines().find(|line| line.starts_with(point)).unwrap();
            line.split(',').rev().take(5).collect::<Vec<_>>().into_iter().rev().collect()
        };
        let (worse, leader) = (cells("1,"), cells("4,"));
        assert_eq!((worse[0], worse[1], worse[3]), ("2", "2.25", "1.125"));
        assert_eq!((leader[0], leader[1], leader[3], leader[4]), ("1", "1.125", "", ""));
    }

    #[test]
    fn csv_reads_back_and_holds_no_formulas() {
        let mut first = row(2, PointStatus::Done, Some(1.25));
        first.values.push(("status".to_owned(), json!(-3)));
        (first.evaluated, first.mfu) = (Measured::default().with(Measure::BITS_PER_BYTE, 0.5), Some(0.25));
        first.measured_on = Some(LossSample { tokens: 2048, rows: 32, standard_error: Some(0.125) });
        let table =
            results(Goal::Minimize, vec![row(1, PointStatus::Failed, None), first]).csv(&no_settings()).unwrap();
        let expected = "point,lr,decay,param.status,status,steps_done,tokens_done,flops_done,val_loss,seconds,own_seconds,run,val_bits_per_byte,val_tokens,standard_error,tokens_per_second,mfu\n\
                        2,1e-5,\"'=1+1, \"\"x\"\"\",-3,done,10,80,,1.25,1.5,0.5,run-2,0.5,2048,0.125,,0.25\n\
                        1,1e-5,\"'=1+1, \"\"x\"\"\",,failed,10,80,,,1.5,0.5,run-1,,,,,\n";
        assert_eq!(table, expected);
        let mut reader = csv::Reader::from_reader(table.as_bytes());
        assert!(reader.records().all(|record| record.unwrap().len() == 17));
        let mut speed = results(Goal::Maximize, vec![row(1, PointStatus::Done, Some(10.0))]);
        speed.objective.metric = Measure::TOKENS_PER_SECOND;
        let header = "point,lr,decay,status,steps_done,tokens_done,flops_done,tokens_per_second,seconds,own_seconds,run,val_bits_per_byte,val_tokens,standard_error,mfu\n";
        assert!(speed.csv(&no_settings()).unwrap().starts_with(header), "the objective has one column");
    }

    #[test]
    fn json_keeps_the_order_of_the_values_and_reads_back() {
        let mut rows = vec![row(1, PointStatus::Done, Some(1.0))];
        rows[0].values.reverse();
        rows[0].values.push(("a".to_owned(), json!([1])));
        let table = results(Goal::Minimize, rows);
        let text = serde_json::to_string(&table).unwrap();
        assert!(text.contains(r#""values":{"decay":"=1+1, \"x\"","lr":0.00001,"a":[1]}"#), "{text}");
        assert_eq!(serde_json::from_str::<SweepResults>(&text).unwrap(), table);
    }
}
