//! The plan of a sweep as text: its points, their cost, and the predicted time.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::table::{Align, Column, RowTable};
use runner_compare::run_names::shortest_name;
use runner_spec::format::{bytes, count, counted, printable, seconds};
use runner_spec::measure::Measure;
use runner_sweep::record::SweepRecord;
use runner_sweep::{
    AshaSettings, BudgetKind, MilestoneUnit, PointValues, ScheduleDecision, SweepTasks, TrainingSegment, names_of,
    value_text,
};

/// The number of points in the table, unless all are wanted.
const MAX_SHOWN_POINTS: usize = 40;

/// The settings with which a sweep is going to be run.
#[derive(Debug, Clone, Copy)]
pub struct SweepPreview {
    /// The number of concurrent runs.
    pub parallel: usize,
    /// The number of threads of each run.
    pub threads: usize,
    pub shows_all_points: bool,
    /// The largest width of the table of points, in characters, if there is one.
    pub width: Option<usize>,
}

impl SweepPreview {
    /// The points of `record`, their cost, and the predicted time of the whole sweep.
    pub fn text(&self, record: &SweepRecord) -> String {
        let tasks = record.tasks();
        let mut out = points_text(record, self.shows_all_points, self.width);
        out.push_str(&counts_text(record, tasks.tasks.len()));
        out.push_str(&objective_text(record));
        out.extend(budget_text(record));
        let (runs, threads) = (counted(self.parallel as u64, "run"), counted(self.threads as u64, "thread"));
        let _ = writeln!(out, "at once  {runs}, {threads} each");
        out.push_str(&time_text(record, &tasks, record.workers(self.parallel)));
        out
    }
}

/// Heads of columns that are not what varies.
const OTHER_HEADS: [&str; 8] = ["point", "steps", "tokens", "parameters", "memory", "status", "time", "run"];

/// What varies, and the shortest heads of its columns that tell them apart, safe to show.
pub(crate) fn value_columns<'v>(values: impl IntoIterator<Item = &'v PointValues>) -> Vec<(String, String)> {
    let names = names_of(values);
    let all: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let head = |name: &str| printable(&shortest_name(name, &all, &OTHER_HEADS));
    names.into_iter().map(|name| (name.to_owned(), head(name))).collect()
}

/// Adds the columns of what varies, with their heads, to `table`.
pub(crate) fn add_values<'a, R>(
    table: &mut RowTable<'a, R>,
    columns: &'a [(String, String)],
    values: impl Fn(&R) -> &PointValues,
) {
    for (name, head) in columns {
        let text = |(_, value): &(_, _)| printable(&value_text(value)).replace('\n', " ");
        let cell = |row: &R| values(row).iter().find(|(own, _)| own == name).map_or_else(|| "-".to_owned(), text);
        table.add(Column::new(head, Align::Right, 8).shortened_to(8), cell);
    }
}

fn points_text(record: &SweepRecord, shows_all: bool, width: Option<usize>) -> String {
    let all = record.points.len();
    let columns = value_columns(record.points.iter().map(|point| &point.values));
    let shown = if shows_all { all } else { MAX_SHOWN_POINTS.min(all) };
    let mut table = RowTable::new(&record.points[..shown]);
    let right = |head, importance| Column::new(head, Align::Right, importance);
    table.add(right("point", u8::MAX), |point| point.index.to_string());
    add_values(&mut table, &columns, |point| &point.values);
    table.add(right("steps", 4), |point| count(point.steps));
    if shows_costs(record) {
        table.add(right("tokens", 4), |point| count(point.tokens() as u64));
        table.add(right("FLOPs", 4), |point| format!("{:.3e}", point.flops()));
    }
    table.add(right("parameters", 1), |point| count(point.parameters));
    table.add(right("memory", 2), |point| bytes(point.memory_bytes));
    table.add(right("predicted", 3), |point| {
        point.step_seconds.map_or_else(|| "?".to_owned(), |s| seconds(s * point.steps as f64))
    });
    if record.points.iter().any(|point| point.same_as.is_some()) {
        table.add(Column::new("same as", Align::Left, 5), |point| {
            point.same_as.map_or_else(String::new, |index| format!("point {index}"))
        });
    }
    if record.points.iter().any(|point| point.trunk.is_some()) {
        table.add(Column::new("begins with", Align::Left, 5), |point| {
            point.trunk.map_or_else(String::new, |t| format!("{} of point {}", counted(t.steps, "step"), t.point))
        });
    }
    let mut out = table.text(width);
    if let Some(more @ 1..) = all.checked_sub(shown) {
        let _ = writeln!(out, "… and {} (--dry-run shows all)", counted(more as u64, "more point"));
    }
    out
}

/// True if points differ in what their training costs, on purpose.
fn shows_costs(record: &SweepRecord) -> bool {
    let is_in_steps = |asha: AshaSettings| asha.unit == MilestoneUnit::Steps;
    record.budget.is_some() || record.is_ladder || record.early_stop.is_some_and(|asha| !is_in_steps(asha))
}

/// The budget of each point, and where its steps come from.
fn budget_text(record: &SweepRecord) -> Option<String> {
    let budget = record.budget?;
    let source = match budget.kind {
        BudgetKind::Flops | BudgetKind::Tokens => "rounded down to whole steps",
        BudgetKind::Time => "by the forecast, without evaluations, samples and checkpoints",
    };
    Some(format!("budget   {} for each point, {source}\n", budget.describe()))
}

fn counts_text(record: &SweepRecord, runs: usize) -> String {
    let points = record.points.len();
    let mut out = format!("sweep    {}: {}", printable(&record.id), counted(points as u64, "point"));
    if runs < points {
        let _ = write!(out, ", {}: {} the same as another", counted(runs as u64, "run"), points - runs);
    }
    let settings = record.settings();
    if let Some(seeds) = settings.iter().map(|setting| setting.points.len()).max().filter(|seeds| *seeds > 1) {
        let settings = counted(settings.len() as u64, "setting");
        let seeds = counted(seeds as u64, "seed");
        let _ = write!(out, "; {settings} with {seeds}");
    }
    if record.excluded > 0 {
        let _ = write!(out, "; {} left out by exclude", count(record.excluded as u64));
    }
    out.push('\n');
    out
}

fn objective_text(record: &SweepRecord) -> String {
    let objective = &record.objective;
    let (metric, goal) = (objective.metric.key(), objective.goal().name());
    let at = if objective.metric == Measure::TOKENS_PER_SECOND {
        "median of a run's steps".to_owned()
    } else {
        format!("{} value of a run", objective.at.name())
    };
    let mut out = format!("judged   by {metric} ({goal}, {at})");
    if let Some(asha) = &record.early_stop {
        let mut rungs: Vec<&Vec<u64>> = record.points.iter().map(|p| &p.rungs).collect();
        rungs.dedup();
        let unit = asha.unit.name();
        let steps = match rungs.as_slice() {
            [one, ..] if asha.unit != MilestoneUnit::Steps => {
                format!("after {} {unit}", asha.first_milestones(one.len().saturating_sub(1)))
            }
            [one] => {
                let (last, first) = one.split_last().map_or((0, &[][..]), |(last, first)| (*last, first));
                let first: Vec<String> = first.iter().map(|&s| count(s)).collect();
                format!("after {} of {} steps", first.join(", "), count(last))
            }
            _ => format!("from {} {unit} on", asha.first_milestones(1)),
        };
        let _ = write!(out, "; early stopping {steps}, where the best 1 in {} continues", asha.reduction);
    }
    out.push('\n');
    out
}

fn time_text(record: &SweepRecord, tasks: &SweepTasks, workers: usize) -> String {
    let mut out = String::new();
    let expected = tasks.simulate_rest(workers, &|_, _| None);
    let steps: u64 = expected.order.iter().map(|segment| tasks.steps(segment)).sum();
    // Results in the order of the points lead to the fewest promotions.
    let all = tasks.all_steps();
    if steps < all {
        let _ =
            writeln!(out, "steps    at least {} of {}: early stopping decides on the rest", count(steps), count(all));
    } else {
        let _ = writeln!(out, "steps    {}", count(steps));
    }
    let branches = record.points.iter().filter(|point| point.trunk.is_some()).count();
    if branches > 0 {
        let begins = if branches == 1 { "begins" } else { "begin" };
        let (points, shared) = (counted(branches as u64, "point"), count(tasks.shared_steps()));
        let _ = writeln!(
            out,
            "shared   {shared} more: {points} {begins} with steps of an earlier point, which are trained once"
        );
    }
    let is_last =
        |segment: &TrainingSegment| tasks.tasks.get(segment.task).is_some_and(|t| segment.rung + 1 == t.rungs.len());
    if !expected.order.iter().any(is_last) {
        out.push_str(
            "warning: there are too few points for so many rungs, so early stopping may stop every point before its \
             last step, and choose the best one among points that stopped early; use more points, a larger first \
             milestone, or a smaller reduction\n",
        );
    }
    if tasks.seconds {
        let (time, hours) = (seconds(expected.virtual_end), hours_text(device_hours(record, tasks, &expected)));
        // A point waits for the one with which it begins.
        let least = if steps < all || (branches > 0 && workers > 1) { "at least" } else { "about" };
        let _ = writeln!(out, "time     {least} {time} predicted, {hours} device-hours; without evaluations");
        if record.points.iter().any(|point| point.is_prediction_disturbed) {
            out.push_str(
                "warning: the time may be wrong, because `runner calibrate --force` measured this machine while it \
                 was busy; calibrate again while it is idle\n",
            );
        }
    } else {
        out.push_str("time     unknown; `runner calibrate` measures this machine\n");
    }
    out
}

fn device_hours(record: &SweepRecord, tasks: &SweepTasks, expected: &ScheduleDecision) -> f64 {
    let device_seconds = |segment: &TrainingSegment| {
        let ranks = record.points[tasks.points[segment.task]].ranks;
        tasks.steps(segment) as f64 * tasks.tasks[segment.task].step_cost * ranks as f64
    };
    expected.order.iter().map(device_seconds).sum::<f64>() / 3600.0
}

fn hours_text(hours: f64) -> String {
    if hours < 0.095 { format!("{hours:.3}") } else { format!("{hours:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_sweep::testing::sweep;

    const PREVIEW: SweepPreview = SweepPreview { parallel: 2, threads: 1, shows_all_points: true, width: None };

    #[test]
    fn a_preview_has_points_objective_and_cost() {
        let text = PREVIEW.text(&sweep());
        for part in [
            "s-12345678: 3 points, 2 runs: 1 the same as another\n",
            "val_loss (minimize, last value of a run); early stopping after 10, 20 of 40 steps, where the best 1 in \
             2 continues\n",
            "2 runs, 1 thread each\n",
            " of 80: early stopping decides on the rest\n",
            "runner calibrate",
            "  point 1\n",
        ] {
            assert!(text.contains(part), "{part:?}: {text}");
        }
    }

    #[test]
    fn a_sweep_that_may_finish_no_point_gets_a_warning() {
        // Two distinct points: one is promoted from the first rung, and none from the second.
        assert!(PREVIEW.text(&sweep()).contains("stop every point before its last step"));
        let mut record = sweep();
        record.points.iter_mut().for_each(|p| p.rungs = vec![10, 40]);
        assert!(!PREVIEW.text(&record).contains("warning"));
        record.early_stop = None;
        record.points.iter_mut().for_each(|p| p.rungs = vec![40]);
        assert!(!PREVIEW.text(&record).contains("warning"));
    }

    #[test]
    fn time_is_predicted_if_the_machine_is_calibrated() {
        let mut record = sweep();
        record.early_stop = None;
        for point in &mut record.points {
            (point.step_seconds, point.rungs) = (Some(90.0), vec![40]);
        }
        // Two concurrent runs of an hour each.
        let text = PREVIEW.text(&record);
        assert!(text.contains("about 1h 00m predicted, 2.0 device-hours"), "{text}");
        assert!(!text.contains("calibrate"), "{text}");
        record.points[1].is_prediction_disturbed = true;
        assert!(PREVIEW.text(&record).contains("the time may be wrong, because `runner calibrate --force` measured"));
        let text = SweepPreview { parallel: 1, ..PREVIEW }.text(&record);
        assert!(text.contains("about 2h 00m predicted, 2.0 device-hours"), "{text}");
    }

    #[test]
    fn long_tables_are_cut() {
        let mut record = sweep();
        let one = record.points[1].clone();
        record.points = (1..=50).map(|index| runner_sweep::record::PlannedPoint { index, ..one.clone() }).collect();
        let preview = SweepPreview { shows_all_points: false, ..PREVIEW };
        assert!(preview.text(&record).contains("… and 10 more points"));
    }
}
