//! `runner sweep fit`: the scaling law of a ladder, its forecasts, which can be stored and checked, and its comparison with another ladder.

use serde::Serialize;

use super::args::{FitArgs, SweepNameArgs};
use super::results::read_sweep;
use crate::cli::terminal::exit::{CommandError, Exit, Result, refuse};
use crate::cli::terminal::output::{print_result, print_to_stderr};
use runner_compare::run_record::{RunRecord, read_experiment_and_plan};
use runner_record::catalog;
use runner_report::ladder::{checked_text, comparison_text, describe_outcome, paragraphs_text, recorded_text};
use runner_sweep::ladder::{
    self, CheckedForecast, LadderComparison, LadderOutcome, LadderResults, RecordedForecast, find_incomparable_ladders,
};
use runner_sweep::stopped_points;
use runner_sweep::summary::ReadSweep;

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct FitJson {
    id: String,
    #[serde(flatten)]
    outcome: LadderOutcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    comparison: Option<LadderComparison>,
    /// The forecasts that were stored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    recorded: Vec<RecordedForecast>,
    /// What the screen shows.
    text: String,
}

/// # Errors
/// If there is no such ladder, it has too few results, or the ladders do not compare.
pub(super) fn run(args: &FitArgs) -> Result<Exit> {
    let (sweep, ladder) = read_ladder(&args.sweep)?;
    if let Some(run) = &args.check {
        return check_run(args, &sweep, run);
    }
    let outcome = ladder.outcome(&args.target).map_err(CommandError::request)?;
    let mut text = paragraphs_text(&describe_outcome(&outcome));
    let mut comparison = None;
    if let Some(other) = &args.against {
        let name = SweepNameArgs { sweep: Some(other.clone()), root: args.sweep.root.clone() };
        let (base, base_ladder) = read_ladder(&name)?;
        if let Some(reason) = find_incomparable_ladders(&sweep, &base) {
            refuse!("the ladders do not compare: {reason}");
        }
        let found = ladder.compare(&base_ladder).map_err(CommandError::request)?;
        text.push_str(&comparison_text(&found));
        comparison = Some(found);
    }
    let mut recorded = Vec::new();
    if let (true, Some(fit)) = (args.record, &outcome.fit) {
        recorded = ladder::record_forecasts(&sweep, fit)?;
        if !recorded.is_empty() {
            text.push_str(&recorded_text(fit, &recorded));
        }
    }
    let json = FitJson { id: sweep.record.id.clone(), outcome, comparison, recorded, text };
    let exit = print_result(args.json, &json, || json.text.clone())?;
    if args.record && json.recorded.is_empty() {
        let mut predictions = json.outcome.fit.iter().flat_map(|fit| &fit.predictions);
        let why = predictions.find_map(|prediction| prediction.not_supported.as_deref());
        refuse!("nothing is recorded, since no forecast is supported: {}", why.unwrap_or("there is none"));
    }
    Ok(exit)
}

/// The output of `--check --json`.
#[derive(Debug, Serialize)]
struct CheckJson {
    id: String,
    checked: Vec<CheckedForecast>,
    /// What the screen shows.
    text: String,
}

fn check_run(args: &FitArgs, sweep: &ReadSweep, run: &str) -> Result<Exit> {
    let path = catalog::resolve(&args.sweep.root.root(), run)?;
    let record = RunRecord::read(&path, stopped_points::describe(&path).status)?;
    let (_, plan) = read_experiment_and_plan(&path)?;
    let (checked, warning) = ladder::check(sweep, &record, &plan).map_err(CommandError::request)?;
    if let Some(warning) = warning {
        print_to_stderr(&format!("warning: {warning}"));
    }
    let json = CheckJson { id: sweep.record.id.clone(), text: checked_text(&checked), checked };
    print_result(args.json, &json, || json.text.clone())
}

fn read_ladder(name: &SweepNameArgs) -> Result<(ReadSweep, LadderResults)> {
    let sweep = read_sweep(name)?;
    if !sweep.record.is_ladder {
        refuse!("{} is not a ladder; a ladder is made from a file with the key `ladder`", sweep.record.id);
    }
    let ladder = LadderResults::new(&sweep.record, &sweep.summary.results).map_err(CommandError::request)?;
    Ok((sweep, ladder))
}
