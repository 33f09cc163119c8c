//! A sweep named where a model is: its best point stands for it.

use std::path::Path;

use crate::cli::runs::run_groups::find_sweep;
use crate::cli::terminal::exit::{Result, refuse};
use crate::cli::terminal::output::print_to_stderr;
use runner_spec::format::printable;
use runner_sweep::PointStatus;
use runner_sweep::summary::ReadSweep;
use runner_workflows::opened_run::{OpenedRun, open_run};

/// Opens the run that `wanted` names; of a sweep, the run of the finished point with the best objective, which standard error names.
///
/// # Errors
/// If there is no such run; if no point of the sweep is done, or its points are not compared.
pub(crate) fn open_model_run(root: &Path, wanted: &str) -> Result<OpenedRun> {
    let Some(folder) = find_sweep(root, wanted)? else { return open_run(root, wanted) };
    let ReadSweep { record, summary, .. } = ReadSweep::open(&folder)?;
    let id = printable(&record.id);
    if record.is_ladder {
        refuse!("{id} is a ladder, whose rungs are not compared; name a run of `runner sweep results {id}`");
    }
    if let Some(reason) = &summary.results.incomparable {
        refuse!("no point of the sweep {id} is the best: {reason}; name a run of `runner sweep results {id}`");
    }
    let objective = &record.objective;
    let done = |row: &&runner_sweep::ResultsRow| row.status == PointStatus::Done && row.objective.is_some();
    // The rows begin with the best one.
    let best = summary.results.rows.iter().find(done);
    let Some((row, run)) = best.and_then(|row| Some((row, row.run.as_deref()?))) else {
        refuse!("no point of the sweep {id} is done and has a {}", objective.label());
    };
    let value = row.objective.map_or_else(String::new, |value| objective.metric.text(value));
    let point = record.point(row.point).map_or_else(String::new, runner_sweep::record::PlannedPoint::describe);
    let so_far = if summary.is_finished { "" } else { " so far" };
    print_to_stderr(&format!("best of {id}{so_far}: {point}, {} {value}: {}", objective.label(), printable(run)));
    let runs = runner_sweep::sweep_dir::runs_folder(&folder);
    open_run(&runs, run)
}
