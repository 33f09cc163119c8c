//! `runner sweep list`: shows the sweeps in the folder of runs.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::args::ListArgs;
use super::results::ReadSweep;
use crate::cli::exit::Exit;
use crate::cli::output::{print_result, print_to_stderr};
use runner_lab::sweep::{PointStatus, ResultsRow};
use runner_lab::sweep_dir;
use runner_report::table::{Align, table};
use runner_spec::format::printable;
use runner_store::RunLock;

/// A sweep in the list.
#[derive(Debug, Serialize)]
struct ListedSweep {
    id: String,
    path: PathBuf,
    /// The sweep file.
    file: PathBuf,
    created: String,
    status: &'static str,
    points: usize,
    /// The points that did all their steps, and those that early stopping ended.
    done: usize,
    failed: usize,
    /// The points that are neither done nor failed.
    queued: usize,
    /// The name of the objective.
    metric: &'static str,
    best: Option<ResultsRow>,
}

impl ListedSweep {
    fn new(sweep: ReadSweep) -> Self {
        let ReadSweep { path, record, summary } = sweep;
        let rows = summary.results.rows.iter();
        let count_of = |wanted: &[PointStatus]| rows.clone().filter(|row| wanted.contains(&row.status)).count();
        let points = count_of(&PointStatus::ALL) - count_of(&[PointStatus::Duplicate]);
        let failed = count_of(&[PointStatus::Failed]);
        // A point that was judged may be promoted until the sweep is finished.
        let stopped = if summary.is_finished { count_of(&[PointStatus::Stopped]) } else { 0 };
        let done = count_of(&[PointStatus::Done]) + stopped;
        let status = if summary.is_finished {
            if failed > 0 { "failed" } else { "done" }
        } else if RunLock::is_held(&path) {
            "running"
        } else {
            "interrupted"
        };
        let metric = record.objective.metric.name();
        let (queued, best) = (points - done - failed, summary.results.best().cloned());
        let (id, file, created) = (record.id, record.file, record.created);
        Self { id, path, file, created, status, points, done, failed, queued, metric, best }
    }
}

/// # Errors
/// If standard output cannot be written. A sweep that cannot be read is reported on standard error.
pub(super) fn run(args: &ListArgs) -> anyhow::Result<Exit> {
    let root = args.root.root();
    let mut sweeps: Vec<ListedSweep> = Vec::new();
    for path in sweep_dir::folders(&root) {
        match ReadSweep::open(&path) {
            Ok(sweep) => sweeps.push(ListedSweep::new(sweep)),
            Err(error) => print_to_stderr(&printable(&format!("warning: passed over: {error}"))),
        }
    }
    // Ids end in numbers, and a longer number is a later one.
    sweeps.sort_by_key(|sweep| (sweep.created.clone(), sweep.id.len(), sweep.id.clone()));
    print_result(args.json, &sweeps, || sweeps_text(&sweeps, &root))
}

fn sweeps_text(sweeps: &[ListedSweep], root: &Path) -> String {
    if sweeps.is_empty() {
        return format!("no sweeps in {} yet: runner sweep FILE starts one\n", root.display());
    }
    let columns = [
        ("sweep", Align::Left),
        ("status", Align::Left),
        ("points", Align::Right),
        ("done", Align::Right),
        ("failed", Align::Right),
        ("queued", Align::Right),
        ("best", Align::Left),
    ];
    let row = |sweep: &ListedSweep| {
        let best = sweep.best.as_ref().and_then(|row| Some((row.objective?, row)));
        let best = best.map(|(value, row)| format!("{} {value:.4}, point {}", sweep.metric, row.point));
        let counts = [sweep.points, sweep.done, sweep.failed, sweep.queued].map(|n| n.to_string());
        let mut cells = vec![printable(&sweep.id), sweep.status.to_owned()];
        cells.extend(counts);
        cells.push(best.unwrap_or_else(|| "-".to_owned()));
        cells
    };
    table(&columns, &sweeps.iter().map(row).collect::<Vec<_>>())
}
