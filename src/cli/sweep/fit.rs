//! `runner sweep fit`: the scaling law of a ladder, its predictions, and its comparison with another ladder.

use serde::Serialize;

use super::args::{FitArgs, SweepNameArgs};
use super::results::read_sweep;
use crate::cli::terminal::exit::{CommandError, Exit, Result, refuse};
use crate::cli::terminal::output::print_result;
use runner_report::ladder::{comparison_text, describe_fit, paragraphs_text};
use runner_sweep::ladder::{LadderComparison, LadderFit, LadderResults, find_incomparable_ladders};
use runner_sweep::summary::ReadSweep;

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct FitJson {
    id: String,
    fit: LadderFit,
    #[serde(skip_serializing_if = "Option::is_none")]
    comparison: Option<LadderComparison>,
    /// What the screen shows.
    text: String,
}

/// # Errors
/// If there is no such ladder, it has too few results, or the ladders do not compare.
pub(super) fn run(args: &FitArgs) -> Result<Exit> {
    let (sweep, ladder) = read_ladder(&args.sweep)?;
    let fit = ladder.fit(&args.target).map_err(CommandError::request)?;
    let mut text = paragraphs_text(&describe_fit(&fit));
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
    let json = FitJson { id: sweep.record.id.clone(), fit, comparison, text };
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
