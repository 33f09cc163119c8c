//! What a sweep is going to do, before it does it.

use std::fmt::Write as _;

use runner_lab::sweep::ScheduleDecision;
use runner_lab::sweep::frozen::{PlannedPoint, SweepRecord, SweepTasks};
use runner_lab::sweep::text;
use runner_report::table::{Align, table};
use runner_spec::format::{bytes, count, printable, seconds};

/// Rows of the table, unless all are wanted.
const SHOWN: usize = 40;

/// How a sweep is going to be run.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    pub parallel: usize,
    /// Of each point.
    pub threads: usize,
    /// Whether all points are shown, however many.
    pub all: bool,
}

/// The points, what they take, and how long all of it is predicted to take.
pub(super) fn preview(frozen: &SweepRecord, how: How) -> String {
    let tasks = frozen.tasks();
    let mut out = points(frozen, how.all);
    out.push_str(&counts(frozen, tasks.tasks.len()));
    out.push_str(&judged(frozen));
    let _ = writeln!(out, "at once  {}, {} each", many(how.parallel, "run"), many(how.threads, "thread"));
    out.push_str(&time(frozen, &tasks, frozen.workers(how.parallel)));
    out
}

fn points(frozen: &SweepRecord, all: bool) -> String {
    let names: Vec<&str> =
        frozen.points.first().map_or_else(Vec::new, |p| p.values.iter().map(|(n, _)| n.as_str()).collect());
    let names: Vec<String> = names.into_iter().map(printable).collect();
    let mut columns: Vec<(&str, Align)> = vec![("point", Align::Right)];
    columns.extend(names.iter().map(|name| (name.as_str(), Align::Right)));
    columns.extend(["steps", "parameters", "memory", "predicted"].map(|name| (name, Align::Right)));
    columns.push(("", Align::Left));
    let shown = if all { frozen.points.len() } else { SHOWN };
    let rows: Vec<Vec<String>> = frozen.points.iter().take(shown).map(row).collect();
    let mut out = table(&columns, &rows);
    if let Some(more @ 1..) = frozen.points.len().checked_sub(shown) {
        let _ = writeln!(out, "… and {} (--dry-run shows all)", many(more, "more point"));
    }
    out
}

fn row(p: &PlannedPoint) -> Vec<String> {
    let mut row = vec![p.index.to_string()];
    row.extend(p.values.iter().map(|(_, value)| printable(&text(value)).replace('\n', " ")));
    row.push(count(p.steps));
    row.push(count(p.parameters));
    row.push(bytes(p.memory_bytes));
    row.push(p.step_seconds.map_or_else(|| "?".to_owned(), |s| seconds(s * p.steps as f64)));
    row.extend(p.same_as.map(|index| format!("the same run as point {index}")));
    row
}

fn counts(frozen: &SweepRecord, runs: usize) -> String {
    let mut out = format!("sweep    {}: {}", printable(&frozen.id), many(frozen.points.len(), "point"));
    let same = frozen.points.len() - runs;
    if same > 0 {
        let _ = write!(out, ", {}: {same} the same as another", many(runs, "run"));
    }
    if frozen.excluded > 0 {
        let _ = write!(out, "; {} left out by exclude", count(frozen.excluded as u64));
    }
    out.push('\n');
    out
}

fn judged(frozen: &SweepRecord) -> String {
    let o = &frozen.objective;
    let mut out = format!("judged   by {}, {} it, {} of a run", o.metric, o.goal.name(), o.at.name());
    if let Some(asha) = &frozen.early_stop {
        let mut rungs: Vec<&Vec<u64>> = frozen.points.iter().map(|p| &p.rungs).collect();
        rungs.dedup();
        let steps = match rungs.as_slice() {
            [one] => {
                let (last, first) = one.split_last().map_or((0, &[][..]), |(last, first)| (*last, first));
                let first: Vec<String> = first.iter().map(|&s| count(s)).collect();
                format!("after {} of {} steps", first.join(", "), count(last))
            }
            _ => format!("from {} steps on", count(asha.min_steps)),
        };
        let _ = write!(out, "; early stopping {steps}, the best of {} go on", asha.reduction);
    }
    out.push('\n');
    out
}

fn time(frozen: &SweepRecord, tasks: &SweepTasks, workers: usize) -> String {
    let expected = tasks.expected(workers, &|_, _| None);
    let steps: u64 = expected.order.iter().map(|segment| tasks.steps(segment)).sum();
    let mut out = format!("steps    {}", count(steps));
    let all = tasks.all_steps();
    if steps < all {
        let _ = write!(out, " of {}, as early stopping goes", count(all));
    }
    out.push('\n');
    // Results in the order of the points are those with the fewest promotions.
    let ends = |segment: &runner_lab::sweep::TrainingSegment| {
        tasks.tasks.get(segment.task).is_some_and(|task| segment.rung + 1 == task.rungs.len())
    };
    if !expected.order.iter().any(ends) {
        out.push_str(
            "warning: early stopping may let no point reach its last step, and then there is no best one: there are too \
             few points for so many rungs (take more points, a larger min_steps, or a smaller reduction)\n",
        );
    }
    if tasks.seconds {
        let hours = device_hours(frozen, tasks, &expected);
        let took = seconds(expected.virtual_end);
        let _ =
            writeln!(out, "time     about {took} predicted, {} device-hours; without evaluations", hours_text(hours));
    } else {
        out.push_str("time     not known: runner calibrate measures this machine\n");
    }
    out
}

fn device_hours(frozen: &SweepRecord, tasks: &SweepTasks, expected: &ScheduleDecision) -> f64 {
    let of = |segment: &runner_lab::sweep::TrainingSegment| {
        let ranks = tasks.points.get(segment.task).and_then(|&i| frozen.points.get(i)).map_or(1, |p| p.ranks);
        let cost = tasks.tasks.get(segment.task).map_or(0.0, |task| task.step_cost);
        tasks.steps(segment) as f64 * cost * ranks as f64
    };
    expected.order.iter().map(of).sum::<f64>() / 3600.0
}

fn hours_text(hours: f64) -> String {
    if hours < 0.095 { format!("{hours:.3}") } else { format!("{hours:.1}") }
}

/// `1 run`, `2 runs`.
pub(super) fn many(n: usize, what: &str) -> String {
    format!("{} {what}{}", count(n as u64), if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_lab::testing::sweep;

    const HOW: How = How { parallel: 2, threads: 1, all: true };

    #[test]
    fn what_is_going_to_be_done_is_said() {
        let text = preview(&sweep(), HOW);
        for part in [
            "s-12345678: 3 points, 2 runs: 1 the same as another\n",
            "val_loss, minimize it, last of a run; early stopping after 10, 20 of 40 steps, the best of 2 go on\n",
            "2 runs, 1 thread each\n",
            "of 80, as early stopping goes\n",
            "runner calibrate",
            "the same run as point 1\n",
        ] {
            assert!(text.contains(part), "{part:?}: {text}");
        }
    }

    #[test]
    fn a_sweep_that_may_finish_no_point_is_warned_of() {
        // Two distinct points, of which one goes on from the first rung, and none from the second.
        assert!(preview(&sweep(), HOW).contains("no point reach its last step"));
        let mut frozen = sweep();
        frozen.points.iter_mut().for_each(|p| p.rungs = vec![10, 40]);
        assert!(!preview(&frozen, HOW).contains("warning"));
        frozen.early_stop = None;
        frozen.points.iter_mut().for_each(|p| p.rungs = vec![40]);
        assert!(!preview(&frozen, HOW).contains("warning"));
    }

    #[test]
    fn time_is_predicted_where_the_machine_is_known() {
        let mut frozen = sweep();
        frozen.early_stop = None;
        for point in &mut frozen.points {
            (point.step_seconds, point.rungs) = (Some(90.0), vec![40]);
        }
        // Two runs of an hour each, at once.
        let text = preview(&frozen, HOW);
        assert!(text.contains("about 1h 00m predicted, 2.0 device-hours"), "{text}");
        let text = preview(&frozen, How { parallel: 1, all: false, ..HOW });
        assert!(text.contains("about 2h 00m predicted, 2.0 device-hours"), "{text}");
    }

    #[test]
    fn long_tables_are_cut() {
        let mut frozen = sweep();
        let one = frozen.points[1].clone();
        frozen.points = (1..=50).map(|index| PlannedPoint { index, ..one.clone() }).collect();
        assert!(preview(&frozen, How { all: false, ..HOW }).contains("… and 10 more points"));
    }
}
