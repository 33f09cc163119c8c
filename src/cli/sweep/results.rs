//! `runner sweep results` and `runner sweep status`: show the points of a sweep, the best first, or in their order.

use std::path::Path;

use serde::Serialize;

use super::args::{ResultsArgs, StatusArgs, SweepNameArgs};
use crate::cli::terminal::exit::{CommandError, Exit, Result};
use crate::cli::terminal::output::{print_content, print_result, print_to_stderr, table_width};
use runner_record::RunLock;
use runner_report::sweep_results::SweepResultsText;
use runner_spec::format::{counted, printable, quoted_line};
use runner_sweep::summary::{ReadSweep, SweepSummary};
use runner_sweep::sweep_dir;

/// Reads the sweep that `args` names. Files of runs that cannot be read are reported on standard error.
pub(super) fn read_sweep(args: &SweepNameArgs) -> Result<ReadSweep> {
    let sweep = ReadSweep::open(&sweep_dir::resolve(&args.root.root(), args.sweep.as_deref())?)?;
    for problem in &sweep.summary.problems {
        print_to_stderr(&format!("warning: {problem}"));
    }
    Ok(sweep)
}

fn text_of<'a>(sweep: &'a ReadSweep, args: &'a SweepNameArgs) -> SweepResultsText<'a> {
    SweepResultsText { record: &sweep.record, summary: &sweep.summary, runs: args.root.runs.as_deref() }
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct SweepJson<'a> {
    id: &'a str,
    path: &'a Path,
    /// The sweep file.
    file: &'a Path,
    /// True if a process runs the sweep now.
    running: bool,
    #[serde(flatten)]
    summary: &'a SweepSummary,
}

impl<'a> SweepJson<'a> {
    fn new(sweep: &'a ReadSweep) -> Self {
        let (id, path, file) = (&sweep.record.id, &sweep.path, &sweep.record.file);
        Self { id, path, file, running: RunLock::is_held(path), summary: &sweep.summary }
    }
}

/// Shows the results, the best point first.
///
/// # Errors
/// If there is no such sweep, or its record is damaged.
pub(super) fn show_results(args: &ResultsArgs) -> Result<Exit> {
    let sweep = read_sweep(&args.sweep)?;
    if args.csv {
        let csv = sweep.summary.results.csv(&sweep.summary.verdict);
        print_content(&csv.map_err(|error| CommandError::failure(error.to_string()))?)?;
        return Ok(Exit::Done);
    }
    print_result(args.json, &SweepJson::new(&sweep), || {
        text_of(&sweep, &args.sweep).parts(table_width()).map(|part| part.trim_end().to_owned() + "\n").collect()
    })
}

/// Shows how far the points are, whichever process runs them.
///
/// # Errors
/// If there is no such sweep, or its record is damaged.
pub(super) fn show_status(args: &StatusArgs) -> Result<Exit> {
    let mut sweep = read_sweep(&args.sweep)?;
    sweep.summary.results.rows.sort_by_key(|row| row.point);
    let json = SweepJson::new(&sweep);
    print_result(args.json, &json, || {
        let text = text_of(&sweep, &args.sweep);
        format!(
            "{}sweep {}, {}, of {}: {}, {}\n{}",
            text.table(table_width()),
            printable(json.id),
            if json.running { "running" } else { "not running" },
            quoted_line(&json.file.display().to_string()),
            counted(sweep.record.points.len() as u64, "point"),
            text.counts(),
            text.conclusion().map_or_else(String::new, |conclusion| conclusion + "\n"),
        )
    })
}
