//! `runner sweep results`: shows the results of a sweep, the best point first.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::args::{ResultsArgs, SweepNameArgs};
use crate::cli::terminal::exit::{CommandError, Exit, Result};
use crate::cli::terminal::output::{print_content, print_result, print_to_stderr, table_width};
use runner_record::RecordError;
use runner_report::sweep_results::{SweepResultsText, describe_validation_use};
use runner_sweep::ladder::LadderOutcome;
use runner_sweep::progress::SweepProgress;
use runner_sweep::record::SweepRecord;
use runner_sweep::summary::SweepSummary;
use runner_sweep::sweep_dir;
use runner_sweep::verdict::{SettingResult, SweepVerdict};
use runner_sweep::{AxisNote, BestPointCaveat, Importance, SweepResults, ValidationUse};

/// A sweep, read from its folder and the run directories of its points.
pub(super) struct ReadSweep {
    pub(super) path: PathBuf,
    pub(super) record: SweepRecord,
    pub(super) summary: SweepSummary,
}

impl ReadSweep {
    /// Reads the sweep that `args` names. Files of runs that cannot be read are reported on standard error.
    pub(super) fn read(args: &SweepNameArgs) -> Result<Self> {
        let sweep = Self::open(&sweep_dir::resolve(&args.root.root(), args.sweep.as_deref())?)?;
        for problem in &sweep.summary.problems {
            print_to_stderr(&format!("warning: {problem}"));
        }
        Ok(sweep)
    }

    /// Reads the sweep in `path`.
    pub(super) fn open(path: &Path) -> Result<Self, RecordError> {
        let record = sweep_dir::read_record(path)?;
        let progress = SweepProgress::read(&sweep_dir::runs_folder(path), &record);
        let summary = SweepSummary::new(path, &record, &progress);
        Ok(Self { path: path.to_owned(), record, summary })
    }

    pub(super) fn text<'a>(&'a self, args: &'a SweepNameArgs) -> SweepResultsText<'a> {
        SweepResultsText { record: &self.record, summary: &self.summary, runs: args.root.runs.as_deref() }
    }
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct ResultsJson<'a> {
    id: &'a str,
    /// The law of a ladder, which is what its results show.
    #[serde(flatten)]
    ladder: Option<&'a LadderOutcome>,
    results: &'a SweepResults,
    /// The setting that is shown to be the best one.
    best: Option<&'a SettingResult>,
    verdict: &'a SweepVerdict,
    validation_use: Option<ValidationUse>,
    caveats: &'a [BestPointCaveat],
    importance: &'a [Importance],
    axis_notes: &'a [AxisNote],
}

/// # Errors
/// If there is no such sweep, or its record is damaged.
pub(super) fn run(args: &ResultsArgs) -> Result<Exit> {
    let sweep = ReadSweep::read(&args.sweep)?;
    let SweepSummary { results, verdict, caveats, ladder, importance, axis_notes, .. } = &sweep.summary;
    if args.csv {
        print_content(&results.csv(verdict).map_err(|error| CommandError::failure(error.to_string()))?)?;
        return Ok(Exit::Done);
    }
    let validation_use = sweep.summary.count_validation_use(&sweep.path);
    let json = ResultsJson {
        id: &sweep.record.id,
        ladder: ladder.as_ref(),
        results,
        best: verdict.best(),
        verdict,
        validation_use,
        caveats,
        importance,
        axis_notes,
    };
    print_result(args.json, &json, || {
        let text = sweep.text(&args.sweep);
        // The counts explain why points without a run have no result.
        let has_all_runs = sweep.summary.counts().removed == 0;
        let counts = if has_all_runs { String::new() } else { format!("{}\n", text.counts()) };
        let last_lines =
            [text.saved_steps(), text.conclusion(), text.caveats(), validation_use.map(describe_validation_use)]
                .into_iter()
                .flatten();
        text.table(table_width())
            + &text.mfu_note().map_or_else(String::new, |note| note + "\n")
            + &counts
            + &text.importance()
            + &text.settings(table_width())
            + &last_lines.map(|line| line + "\n").collect::<String>()
    })
}
