//! `runner sweep status`: shows how far the points of a sweep are, whichever process runs them.

use std::path::Path;

use serde::Serialize;

use super::args::StatusArgs;
use super::results::ReadSweep;
use crate::cli::terminal::exit::{Exit, Result};
use crate::cli::terminal::output::{print_result, table_width};
use runner_record::RunLock;
use runner_spec::format::{counted, printable, quoted_line};
use runner_sweep::ladder::LadderOutcome;
use runner_sweep::summary::SweepSummary;
use runner_sweep::verdict::SweepVerdict;
use runner_sweep::{BestPointCaveat, SweepResults};

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct StatusJson<'a> {
    id: &'a str,
    path: &'a Path,
    /// The sweep file.
    file: &'a Path,
    /// True if a process runs the sweep now.
    running: bool,
    #[serde(flatten)]
    ladder: Option<&'a LadderOutcome>,
    results: &'a SweepResults,
    verdict: &'a SweepVerdict,
    caveats: &'a [BestPointCaveat],
}

/// # Errors
/// If there is no such sweep, or its record is damaged.
pub(super) fn run(args: &StatusArgs) -> Result<Exit> {
    let mut sweep = ReadSweep::read(&args.sweep)?;
    sweep.summary.results.rows.sort_by_key(|row| row.point);
    let (record, running) = (&sweep.record, RunLock::is_held(&sweep.path));
    let SweepSummary { results, verdict, caveats, ladder, .. } = &sweep.summary;
    let ladder = ladder.as_ref();
    let json = StatusJson {
        id: &record.id,
        path: &sweep.path,
        file: &record.file,
        running,
        ladder,
        results,
        verdict,
        caveats,
    };
    print_result(args.json, &json, || {
        let text = sweep.text(&args.sweep);
        format!(
            "{}sweep {}, {}, of {}: {}, {}\n{}{}",
            text.table(table_width()),
            printable(&record.id),
            if running { "running" } else { "not running" },
            quoted_line(&record.file.display().to_string()),
            counted(record.points.len() as u64, "point"),
            text.counts(),
            text.conclusion().map_or_else(String::new, |conclusion| conclusion + "\n"),
            text.caveats().map_or_else(String::new, |caveats| caveats + "\n")
        )
    })
}
