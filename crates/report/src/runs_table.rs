//! The table of `runner runs`.

use super::summary::short_time;
use super::table::{Align, Column, is_within, table_of_width};
use runner_record::ancestry::parent;
use runner_record::catalog::{ListedRun, ListedStatus};
use runner_spec::format::{loss, printable, rate, step_share};

/// A column that appears only if one of its cells is not empty: its head, its importance, and the cell of a run.
type OptionalColumn = (&'static str, u8, fn(&ListedRun) -> String);

/// The column that holds when a run started.
const STARTED: usize = 5;

/// A table with one run per line. Columns for tags, the sweep's point and the origin appear if any run has them.
/// Lines are at most `width` characters wide, if it is given: the time of day is left out, texts are shortened, then columns are left out.
pub fn runs_table(runs: &[ListedRun], width: Option<usize>) -> String {
    let mut columns = vec![
        Column::new("id", Align::Left, 9).shortened_to(12),
        Column::new("status", Align::Left, 8),
        Column::new("step", Align::Right, 6),
        Column::new("val loss", Align::Right, 7),
        Column::new("tokens/s", Align::Right, 1),
        Column::new("started", Align::Left, 2),
    ];
    // The sweep and its point distinguish a point's run from a run of the sweep's base, which has the same name.
    let optional: [OptionalColumn; 4] = [
        ("tags", 4, |run| printable(&run.tags.join(" "))),
        ("sweep", 5, sweep_point),
        ("job", 4, |run| printable(run.job.as_deref().unwrap_or_default())),
        ("from", 3, origin),
    ];
    let present: Vec<_> =
        optional.into_iter().filter(|(.., cell)| runs.iter().any(|run| !cell(run).is_empty())).collect();
    columns.extend(
        present.iter().map(|(head, importance, _)| Column::new(head, Align::Left, *importance).shortened_to(8)),
    );
    let mut rows: Vec<Vec<String>> = runs
        .iter()
        .map(|run| {
            let dash = || "-".to_owned();
            let mut row = vec![
                printable(&run.id),
                styled_status(run.status),
                if run.status == ListedStatus::Broken { dash() } else { step_share(run.step, run.steps) },
                run.last_eval.val_loss().map_or_else(dash, loss),
                run.tokens_per_second.map_or_else(dash, rate),
                run.started.as_deref().map_or_else(dash, short_time),
            ];
            row.extend(present.iter().map(|(.., cell)| cell(run)));
            row
        })
        .collect();
    if width.is_some_and(|width| !is_within(&columns, &rows, width)) {
        for started in rows.iter_mut().filter_map(|row| row.get_mut(STARTED)) {
            started.truncate(started.find(' ').unwrap_or(started.len()));
        }
    }
    table_of_width(columns, rows, width)
}

fn styled_status(status: ListedStatus) -> String {
    let name = console::style(status.description());
    let styled = match status {
        ListedStatus::Stopped => name,
        ListedStatus::Done => name.green(),
        ListedStatus::Running | ListedStatus::Pending | ListedStatus::Requeued => name.cyan(),
        ListedStatus::Interrupted => name.yellow(),
        ListedStatus::Failed | ListedStatus::Broken => name.red(),
    };
    styled.to_string()
}

fn sweep_point(run: &ListedRun) -> String {
    run.sweep.as_ref().map_or_else(String::new, |s| printable(&format!("{} #{}", s.id, s.point)))
}

/// The run that `run` was made from, in words; empty if there is none.
pub(crate) fn origin(run: &ListedRun) -> String {
    let parent = parent(run.origin.as_ref(), run.continued_from.as_ref());
    parent.map_or_else(String::new, |parent| printable(&parent.describe()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_record::catalog::describe;
    use runner_record::manifest::{ContinuedFrom, RunOrigin, SweepPoint};
    use runner_spec::measure::Measure;

    fn run(id: &str, status: ListedStatus, step: u64) -> ListedRun {
        let nothing = describe(std::path::Path::new("/nowhere/at/all"));
        ListedRun {
            id: id.into(),
            status,
            step,
            steps: 2000,
            last_eval: (step > 0).then_some((Measure::VAL_LOSS, 1.5)).into_iter().collect(),
            tokens_per_second: (step > 0).then_some(12_345.6),
            started: (status != ListedStatus::Broken).then(|| "2026-01-02T03:04:05.678Z".to_owned()),
            ..nothing
        }
    }

    fn plain(runs: &[ListedRun], width: Option<usize>) -> String {
        console::strip_ansi_codes(&runs_table(runs, width)).into_owned()
    }

    #[test]
    fn the_table_of_runs_is_shown() {
        let runs = [run("chars-0a1b2c3d", ListedStatus::Done, 2000), run("x", ListedStatus::Broken, 0)];
        insta::assert_snapshot!(plain(&runs, None), @r"
        id              status         step  val loss  tokens/s  started
        chars-0a1b2c3d  done    2,000/2,000    1.5000    12,346  2026-01-02 03:04:05
        x               broken            -         -         -  -
        ");
    }

    fn family() -> Vec<ListedRun> {
        let id = || "chars-0a1b2c3d".to_owned();
        let fork = RunOrigin::Fork { id: id(), step: Some(200), plan_hash: String::new() };
        let again = RunOrigin::Reproduction { id: id(), plan_hash: String::new(), state_hash: None };
        let from = ContinuedFrom { id: id(), step: 7, ..ContinuedFrom::default() };
        vec![
            ListedRun { tags: vec!["good".into(), "paper".into()], ..run("a", ListedStatus::Done, 2000) },
            ListedRun { origin: Some(fork), ..run("b", ListedStatus::Running, 300) },
            ListedRun { origin: Some(again), ..run("c", ListedStatus::Failed, 300) },
            ListedRun {
                continued_from: Some(from),
                sweep: Some(SweepPoint { id: "lr\x1b[2J".into(), point: 3 }),
                ..run("d", ListedStatus::Interrupted, 300)
            },
        ]
    }

    #[test]
    fn early_stops_are_marked() {
        let runs = [run("a", ListedStatus::Done, 2000), run("b", ListedStatus::Stopped, 20)];
        insta::assert_snapshot!(plain(&runs, None), @r"
        id  status                step  val loss  tokens/s  started
        a   done           2,000/2,000    1.5000    12,346  2026-01-02 03:04:05
        b   stopped early     20/2,000    1.5000    12,346  2026-01-02 03:04:05
        ");
    }

    #[test]
    fn tags_sweeps_and_ancestry_have_columns_where_there_are_any() {
        insta::assert_snapshot!(plain(&family(), None));
    }

    #[test]
    fn lines_fit_the_terminal() {
        for width in [40, 60, 80, 100] {
            let text = plain(&family(), Some(width));
            let table = text.lines().filter(|line| !line.starts_with("left out"));
            let widest = table.map(console::measure_text_width).max().unwrap();
            assert!(widest <= width, "{width}: {widest}\n{text}");
        }
        assert_eq!(plain(&family(), Some(400)), plain(&family(), None));
        insta::assert_snapshot!("lines_fit_the_terminal", plain(&family(), Some(90)));
    }
}
