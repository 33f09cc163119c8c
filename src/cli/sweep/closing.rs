//! What came out of a sweep: the table, what mattered, and how to get the best again.

use std::fmt::Write as _;
use std::path::Path;

use super::events::{Outcome, SweepEvent};
use super::preview::many;
use runner_lab::sweep::frozen::SweepRecord;
use runner_lab::sweep::standing::{PointProgress, SweepProgress, comparable, progress, rows};
use runner_lab::sweep::{Importance, PointStatus, Results, ResultsRow, from_str, importance, text};
use runner_lab::sweep_dir;
use runner_report::Screen;
use runner_report::table::{Align, table};
use runner_spec::format::{count, percent, printable, seconds};

/// All that is to be said of a sweep at some moment.
#[derive(Debug)]
pub(super) struct Closing<'a> {
    frozen: &'a SweepRecord,
    pub results: Results,
    pub importance: Vec<Importance>,
    /// The steps after which all that was compared for it was measured, where that is not at the end.
    measured_at: Option<u64>,
    /// Whether nothing is left to do.
    over: bool,
    /// Points that failed in this call.
    pub failed: usize,
    runs: Option<&'a Path>,
}

impl<'a> Closing<'a> {
    /// Of the sweep in `path`. `runs`: the `--runs` flag, where it was given.
    pub(super) fn new(
        path: &Path,
        frozen: &'a SweepRecord,
        standings: &[Option<PointProgress>],
        runs: Option<&'a Path>,
    ) -> Self {
        let SweepProgress { over, due } = progress(frozen, standings);
        let rows = rows(frozen, standings, &due);
        // What varied is in the sweep file as it was; without it nothing is said of what mattered.
        let text = sweep_dir::text(path).unwrap_or_default();
        let axes = from_str(&text, &frozen.file).map(|spec| spec.axes).unwrap_or_default();
        let (step, measured) = comparable(frozen, standings, &rows);
        let mattered = importance(&axes, frozen.objective.goal, &measured);
        let results = Results::new(frozen.objective, rows);
        Self { frozen, results, importance: mattered, measured_at: step, over, failed: 0, runs }
    }

    /// Points that were judged and do not go on; which these are is known when it is over.
    pub(super) fn stopped(&self) -> Vec<usize> {
        if !self.over {
            return Vec::new();
        }
        let stopped = self.results.rows.iter().filter(|row| row.status == PointStatus::Stopped);
        let mut out: Vec<usize> = stopped.map(|row| row.point).collect();
        out.sort_unstable();
        out
    }

    /// Rows, the best first.
    pub(super) fn table(&self) -> String {
        let names: Vec<String> =
            self.frozen.points.first().map_or_else(Vec::new, |p| p.values.iter().map(|(n, _)| printable(n)).collect());
        let mut columns: Vec<(&str, Align)> = vec![("point", Align::Right)];
        columns.extend(names.iter().map(|name| (name.as_str(), Align::Right)));
        let metric = self.frozen.objective.metric.name();
        columns.extend([(metric, Align::Right), ("steps", Align::Right), ("status", Align::Left)]);
        columns.extend([("time", Align::Right), ("run", Align::Left)]);
        table(&columns, &self.results.rows.iter().map(|row| self.row(row)).collect::<Vec<_>>())
    }

    fn row(&self, row: &ResultsRow) -> Vec<String> {
        let point = self.frozen.point(row.point);
        let dash = || "-".to_owned();
        let mut out = vec![row.point.to_string()];
        out.extend(row.values.iter().map(|(_, value)| printable(&text(value)).replace('\n', " ")));
        out.push(row.objective.map_or_else(dash, |value| format!("{value:.4}")));
        out.push(format!("{}/{}", count(row.steps), count(point.map_or(0, |p| p.steps))));
        out.push(self.status(row.status, point.and_then(|p| p.same_as)));
        out.push(row.seconds.map_or_else(dash, seconds));
        out.push(row.run.as_deref().map_or_else(dash, printable));
        out
    }

    fn status(&self, status: PointStatus, same_as: Option<usize>) -> String {
        let text = match (status, same_as) {
            (PointStatus::Stopped, _) if self.over => "stopped early".to_owned(),
            // It may go on yet.
            (PointStatus::Stopped, _) => "judged".to_owned(),
            (_, Some(other)) => format!("as point {other}"),
            (status, _) => status.name().to_owned(),
        };
        let styled = console::style(text);
        let styled = match status {
            PointStatus::Done => styled.green(),
            PointStatus::Running => styled.cyan(),
            PointStatus::Interrupted => styled.yellow(),
            PointStatus::Failed => styled.red(),
            PointStatus::Queued | PointStatus::Stopped | PointStatus::Duplicate => styled,
        };
        styled.to_string()
    }

    /// `5 done, 1 failed`.
    pub(super) fn counts(&self) -> String {
        const ALL: [PointStatus; 7] = [
            PointStatus::Done,
            PointStatus::Stopped,
            PointStatus::Failed,
            PointStatus::Running,
            PointStatus::Interrupted,
            PointStatus::Queued,
            PointStatus::Duplicate,
        ];
        let of = |status: PointStatus| self.results.rows.iter().filter(|row| row.status == status).count();
        let words: Vec<String> = ALL
            .into_iter()
            .map(|status| (status, of(status)))
            .filter(|(_, n)| *n > 0)
            .map(|(status, n)| match status {
                PointStatus::Stopped if self.over => format!("{n} stopped early"),
                PointStatus::Stopped => format!("{n} judged"),
                PointStatus::Duplicate => format!("{n} the same as another"),
                other => format!("{n} {}", other.name()),
            })
            .collect();
        words.join(", ")
    }

    /// What early stopping saved of the steps.
    pub(super) fn saved(&self) -> Option<String> {
        self.frozen.early_stop?;
        let own = self.results.rows.iter().filter(|row| row.status != PointStatus::Duplicate);
        let done: u64 = own.map(|row| row.steps).sum();
        let all = self.frozen.tasks().all_steps();
        let share = 1.0 - done as f64 / all.max(1) as f64;
        if !self.over {
            return Some(format!("{} of at most {} steps are done", count(done), count(all)));
        }
        Some(format!("{} of {} steps were done: {} saved by early stopping", count(done), count(all), percent(share)))
    }

    /// The command that goes on with the first of those that failed and would of the same again, if there are any.
    fn anyway(&self) -> Option<String> {
        let failed = self.results.rows.iter().filter(|row| self.over && row.status == PointStatus::Failed);
        let run = printable(failed.min_by_key(|row| row.point)?.run.as_deref()?);
        let runs = self.runs.map_or_else(String::new, |runs| format!(" --runs {}", runs.display()));
        Some(format!("runner resume {run}{runs}"))
    }

    /// Which parameters mattered, a line each.
    pub(super) fn mattered(&self) -> String {
        let mut out = String::new();
        let width = self.importance.iter().map(|i| i.name.chars().count()).max().unwrap_or(0);
        for i in &self.importance {
            let best = i.best.as_ref().map_or_else(String::new, |value| format!("  best {}", printable(&text(value))));
            let _ = writeln!(out, "  {:width$}  {:>6}{best}", printable(&i.name), percent(i.share));
        }
        if let Some(first) = self.importance.first() {
            let at = self.measured_at.map_or_else(String::new, |step| format!(" after {} steps", count(step)));
            let head = format!("what mattered{at} ({} of {}):\n", first.how, self.frozen.objective.metric);
            out.insert_str(0, &head);
        }
        out
    }

    /// The best point, and how to get it again.
    pub(super) fn best(&self) -> Option<String> {
        let row = self.results.best()?;
        let words = runner_lab::sweep::frozen::words(&row.values);
        let metric = self.frozen.objective.metric;
        let steps = self.frozen.point(row.point).map_or(row.steps, |point| point.steps);
        let so_far = if self.over { "" } else { " so far" };
        let mut out = format!("best{so_far}: point {} ({words}), {metric} {:.4}", row.point, row.objective?);
        if row.steps < steps {
            let _ = write!(out, " after {} of {} steps", count(row.steps), count(steps));
        }
        if let Some(run) = &row.run {
            let run = printable(run);
            let runs = self.runs.map_or_else(String::new, |runs| format!(" --runs {}", runs.display()));
            let _ = write!(out, ", run {run}\n  runner reproduce {run}{runs}");
        }
        Some(out)
    }
}

/// Says how a sweep ended.
pub(super) fn print(closing: &Closing<'_>, outcome: Outcome, up_to_date: bool, screen: &Screen) {
    let parts = [Some(closing.table()), Some(closing.mattered()), closing.saved(), closing.best()];
    for part in parts.into_iter().flatten().filter(|part| !part.is_empty()) {
        screen.line(&part);
    }
    let event =
        SweepEvent::Summary { status: outcome, up_to_date, results: &closing.results, importance: &closing.importance };
    if let Ok(line) = serde_json::to_string(&event) {
        screen.json_line(&line);
    }
    let id = printable(&closing.frozen.id);
    let counts = closing.counts();
    let points = many(closing.frozen.points.len(), "point");
    let anyway = closing.anyway().map_or_else(String::new, |command| format!("; {command} tries again what diverged"));
    screen.result_line(&match outcome {
        Outcome::Done if up_to_date => format!("up to date: sweep {id}, {points}: {counts}{anyway}"),
        Outcome::Failed if closing.over => format!("failed: sweep {id}, {points}: {counts}{anyway}"),
        Outcome::Done => format!("done: sweep {id}, {points}: {counts}"),
        Outcome::Failed => {
            let failed = closing.failed;
            format!("failed: sweep {id}, {points}: {counts}; {failed} failed in this call: the same command goes on")
        }
        Outcome::Interrupted => format!("interrupted: sweep {id}, {points}: {counts}; the same command continues"),
    });
}
