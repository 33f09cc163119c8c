//! The results of a sweep as text: the tables of its points and settings, and the conclusion.

use std::path::Path;

use crate::ladder::{describe_outcome, paragraphs_text};
use crate::sweep_preview::{add_values, value_columns};
use crate::table::{Align, Column, RowTable};
use runner_spec::format::{count, loss, percent, printable, rate, seconds, step_share};
use runner_spec::measure::Measure;
use runner_stats::Interval;
use runner_sweep::record::SweepRecord;
use runner_sweep::summary::SweepSummary;
use runner_sweep::verdict::words::{number_text, p_value_text};
use runner_sweep::verdict::{Conclusion, SettingResult, SweepVerdict};
use runner_sweep::{Goal, MilestoneUnit, Objective, PointStatus, ResultsRow};

/// The results of a sweep, and what commands about its runs need.
#[derive(Debug, Clone, Copy)]
pub struct SweepResultsText<'a> {
    pub record: &'a SweepRecord,
    pub summary: &'a SweepSummary,
    /// The value of `--runs`, if it was given.
    pub runs: Option<&'a Path>,
}

impl SweepResultsText<'_> {
    /// The rows of the summary, in their order, at most `width` characters wide, if it is given.
    pub fn table(&self, width: Option<usize>) -> String {
        let columns = value_columns(self.record.points.iter().map(|point| &point.values));
        let label = self.record.objective.label();
        let (rows, metric) = (&self.summary.results.rows, &self.record.objective.metric);
        let dash = || "-".to_owned();
        let right = |head, importance| Column::new(head, Align::Right, importance);
        let mut table = RowTable::new(rows);
        table.add(right("point", u8::MAX), |row| row.point.to_string());
        add_values(&mut table, &columns, |row| &row.values);
        table.add(right(&label, 9), |row| row.objective.map_or_else(dash, |value| metric.text(value)));
        // Bits per byte and the speed stand beside the objective unless they are the objective themselves.
        if *metric != Measure::BITS_PER_BYTE && rows.iter().any(|row| row.evaluated.bits_per_byte().is_some()) {
            table.add(right("bits/byte", 1), |row| row.evaluated.bits_per_byte().map_or_else(dash, loss));
        }
        if self.shows_mfu() {
            if *metric != Measure::TOKENS_PER_SECOND {
                table.add(right("tokens/s", 2), |row| row.tokens_per_second.map_or_else(dash, rate));
            }
            table.add(right("mfu", 8), |row| row.mfu.map_or_else(dash, percent));
        }
        let point = |row: &ResultsRow| self.record.point(row.point);
        table.add(right("steps", 4), |row| step_share(row.steps, point(row).map_or(0, |p| p.steps)));
        let status = |row: &ResultsRow| Self::status_text(row, point(row).and_then(|p| p.same_as));
        table.add(Column::new("status", Align::Left, 9), status);
        table.add(right("time", 0), |row| row.seconds.map_or_else(dash, seconds));
        let run = Column::new("run", Align::Left, 3).shortened_to(12);
        table.add(run, |row| row.run.as_deref().map_or_else(dash, printable));
        table.text(width)
    }

    fn shows_mfu(&self) -> bool {
        self.summary.results.rows.iter().any(|row| row.mfu.is_some())
    }

    /// States that MFU is unknown, where points are compared by their speed.
    pub fn mfu_note(&self) -> Option<String> {
        let has_speed = self.summary.results.rows.iter().any(|row| row.tokens_per_second.is_some());
        let is_missing = self.record.objective.metric == Measure::TOKENS_PER_SECOND && !self.shows_mfu();
        (is_missing && has_speed).then(|| {
            "mfu is unknown, because the peak FLOP/s of the device are; set them for new runs, for example \
             `RUNNER_PEAK_FLOPS=400e9`"
                .to_owned()
        })
    }

    fn status_text(row: &ResultsRow, same_as: Option<usize>) -> String {
        let name = match row.status {
            PointStatus::Done | PointStatus::Failed if row.diverged => "diverged",
            other => other.description(),
        };
        let styled = console::style(same_as.map_or_else(|| name.to_owned(), |other| format!("as point {other}")));
        let styled = match row.status {
            PointStatus::Done if row.diverged => styled.red(),
            PointStatus::Done => styled.green(),
            PointStatus::Running => styled.cyan(),
            PointStatus::Interrupted => styled.yellow(),
            PointStatus::Failed => styled.red(),
            PointStatus::Queued | PointStatus::Judged | PointStatus::Stopped | PointStatus::Duplicate => styled,
        };
        styled.to_string()
    }

    /// `5 done, 1 failed`.
    pub fn counts(&self) -> String {
        let known = self.summary.counts().into_iter().filter(|(_, points)| *points > 0);
        let texts = known.map(|(status, points)| format!("{} {}", count(points as u64), status.description()));
        texts.collect::<Vec<_>>().join(", ")
    }

    /// Everything that the results show, the parts apart from each other. Tables are at most `width` characters wide, if it is given.
    pub fn parts(&self, width: Option<usize>) -> impl Iterator<Item = String> {
        let tables = [Some(self.table(width)), self.mfu_note(), Some(self.settings(width))];
        let all = tables.into_iter().chain([self.saved_steps(), self.conclusion()]);
        all.flatten().filter(|part| !part.is_empty())
    }

    /// The steps that early stopping saved, or the tokens or FLOPs if its milestones count these; `None` without early stopping.
    pub fn saved_steps(&self) -> Option<String> {
        let unit = self.record.early_stop?.unit;
        let distinct = self.summary.results.rows.iter().filter(|row| row.status != PointStatus::Duplicate);
        let (mut done, mut all) = (0.0, 0.0);
        for (row, point) in distinct.filter_map(|row| Some((row, self.record.point(row.point)?))) {
            done += unit.amount(&point.pace, row.steps);
            all += unit.amount(&point.pace, point.steps);
        }
        let amount = |number: f64| {
            if unit == MilestoneUnit::Flops { format!("{number:.3e}") } else { count(number as u64) }
        };
        let (amounts, unit) = ([done, all].map(amount), unit.name());
        if !self.summary.is_finished {
            return Some(format!("{} of at most {} {unit} are done", amounts[0], amounts[1]));
        }
        let share = percent(1.0 - done / all.max(1.0));
        Some(format!("{} of {} {unit} were done: {share} saved by early stopping", amounts[0], amounts[1]))
    }

    /// The command that retries the first of the points whose failure would repeat, if the sweep is finished and there are any.
    pub fn retry_command(&self) -> Option<String> {
        let rows = self.summary.results.rows.iter();
        let failed = rows.filter(|row| self.summary.is_finished && row.status == PointStatus::Failed);
        let run = printable(failed.min_by_key(|row| row.point)?.run.as_deref()?);
        Some(format!("runner resume {run}{}", self.runs_flag()))
    }

    fn runs_flag(&self) -> String {
        self.runs.map_or_else(String::new, |runs| format!(" --runs {}", runs.display()))
    }

    /// The settings with their means over the seeds and their comparisons with the leader; empty if each setting has one seed, or the
    /// settings are the rungs of a ladder.
    pub fn settings(&self, width: Option<usize>) -> String {
        if self.record.is_ladder {
            return String::new();
        }
        settings_table(&self.summary.verdict, &self.record.objective, width)
    }

    /// The conclusion from the results, and the command that reproduces a run of the leading setting. Of a ladder it is the law, its check
    /// and its forecast.
    pub fn conclusion(&self) -> Option<String> {
        if let Some(ladder) = &self.summary.ladder {
            return Some(paragraphs_text(&describe_outcome(ladder)).trim_end().to_owned());
        }
        let verdict = &self.summary.verdict;
        let row_of = |point: &usize| self.summary.results.rows.iter().find(|row| row.point == *point);
        let (mut lines, row) = match verdict.leader() {
            Some(leader) => (verdict.words.clone(), leader.points.iter().find_map(row_of)),
            None if verdict.words.is_empty() => {
                let row = self.summary.results.first_measured()?;
                (vec![self.unfinished_point(row)?], Some(row))
            }
            None => (verdict.words.clone(), None),
        };
        let run = row.filter(|row| matches!(row.status, PointStatus::Done | PointStatus::Stopped));
        // Only what is final is worth repeating.
        if let Some(run) = run.and_then(|row| row.run.as_deref()) {
            lines.push(format!("  runner reproduce {}{}", printable(run), self.runs_flag()));
        }
        Some(lines.join("\n"))
    }

    /// The point that leads if none has done all its steps.
    fn unfinished_point(&self, row: &ResultsRow) -> Option<String> {
        let (point, objective) = (self.record.point(row.point)?, &self.record.objective);
        let (metric, value) = (objective.label(), objective.metric.text(row.objective?));
        let most = if objective.goal() == Goal::Minimize { "lowest" } else { "highest" };
        let so_far = if self.summary.is_finished { "" } else { " so far" };
        let (steps, all) = (count(row.steps), count(point.steps));
        Some(format!(
            "{most} {metric}{so_far}: {}, {value} after {steps} of {all} steps; no point did all its steps",
            point.describe()
        ))
    }
}

/// The settings of `verdict` with their means over the seeds and their comparisons with the leader; empty if there is one setting, if each
/// setting has one seed, or if they are rungs of a ladder.
pub(crate) fn settings_table(verdict: &SweepVerdict, objective: &Objective, width: Option<usize>) -> String {
    if !verdict.has_seeds() || matches!(verdict.conclusion, Conclusion::Rungs { .. } | Conclusion::OneSetting) {
        return String::new();
    }
    let columns = value_columns(verdict.settings.iter().map(|setting| &setting.values));
    let mean = format!("mean {}", objective.label());
    let dash = || "-".to_owned();
    let sd = |setting: &SettingResult| setting.sample.and_then(|sample| sample.sd);
    let ends = |setting: &SettingResult| setting.comparison.and_then(|comparison| comparison.interval());
    let signed = |value: f64, setting: &SettingResult| {
        let scale = ends(setting).map_or(0.0, Interval::half_width);
        format!("{}{}", if value < 0.0 { "" } else { "+" }, number_text(value, scale))
    };
    let right = |head, importance| Column::new(head, Align::Right, importance);
    let mut table = RowTable::new(&verdict.settings);
    add_values(&mut table, &columns, |setting| &setting.values);
    table.add(right(&mean, 9), |setting| {
        setting.sample.map_or_else(dash, |sample| number_text(sample.mean, sample.sd.unwrap_or(0.0)))
    });
    table.add(right("sd", 7), |setting| sd(setting).map_or_else(dash, |sd| number_text(sd, sd)));
    table.add(right("seeds", 5), |setting| {
        let tested = setting.sample.map_or(setting.measured, |sample| sample.n);
        step_share(tested as u64, setting.points.len() as u64)
    });
    table.add(right("to leader", 6), |setting| {
        setting.comparison.map_or_else(dash, |comparison| signed(comparison.difference(), setting))
    });
    table.add(right("95% interval", 3), |setting| {
        ends(setting)
            .map_or_else(dash, |ends| format!("{} to {}", signed(ends.low, setting), signed(ends.high, setting)))
    });
    table.add(right("p", 4), |setting| {
        let compared = setting.comparison.map(|comparison| comparison.compared);
        let p = compared.map(|c| if verdict.picked_from.is_some() { c.adjusted_p } else { c.contrast.p });
        p.map_or_else(dash, p_value_text)
    });
    table.add(Column::new("", Align::Left, 8), |setting| setting.label.clone());
    table.text(width)
}
