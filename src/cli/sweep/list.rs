//! `runner sweep list`: shows the sweeps in the folder of runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::args::ListArgs;
use crate::cli::terminal::exit::{Exit, Result};
use crate::cli::terminal::output::{print_result, print_to_stderr, table_width};
use runner_record::RunLock;
use runner_report::table::{Align, Column, table_of_width};
use runner_spec::format::{count, loss as metric_loss, printable};
use runner_sweep::PointStatus;
use runner_sweep::ladder::{LadderOutcome, LadderPrediction, SizeOptimum};
use runner_sweep::record::SweepRecord;
use runner_sweep::summary::{ReadSweep, SweepSummary};
use runner_sweep::sweep_dir;
use runner_sweep::verdict::words::mean_text;
use runner_sweep::verdict::{Conclusion, SettingResult};

/// A sweep in the list.
#[derive(Debug, Serialize)]
struct ListedSweep {
    id: String,
    path: PathBuf,
    /// The sweep file.
    file: PathBuf,
    created: String,
    status: &'static str,
    /// All points; the counts by status add up to this number.
    points: usize,
    #[serde(flatten)]
    counts: BTreeMap<PointStatus, usize>,
    /// The name of the objective.
    metric: String,
    /// The setting that is shown to be the best one.
    best: Option<SettingResult>,
    /// The conclusion in a few words.
    conclusion: Option<String>,
}

impl ListedSweep {
    fn new(sweep: ReadSweep) -> Self {
        let ReadSweep { path, record, summary, .. } = sweep;
        let status = match (summary.is_finished, summary.has_failed_points()) {
            (true, true) => "failed",
            (true, false) => "done",
            (false, _) if RunLock::is_held(&path) => "running",
            (false, _) => "interrupted",
        };
        let conclusion = conclusion_text(&record, &summary);
        Self {
            status,
            points: record.points.len(),
            counts: summary.counts().into(),
            metric: record.objective.metric.key().into_owned(),
            conclusion,
            best: summary.verdict.best().cloned(),
            id: record.id,
            path,
            file: record.file,
            created: record.created,
        }
    }
}

/// The conclusion of a sweep in a few words, such as `best: val_loss 1.9256 (4 seeds), lr=0.01`.
fn conclusion_text(record: &SweepRecord, summary: &SweepSummary) -> Option<String> {
    let (metric, label) = (&record.objective.metric, record.objective.label());
    Some(if let Some(ladder) = &summary.ladder {
        ladder_text(ladder)
    } else if let Some(leader) = summary.verdict.leader() {
        let kind = match &summary.verdict.conclusion {
            Conclusion::Best => "best: ",
            Conclusion::BestOfCompared => "best of those compared: ",
            Conclusion::Same => "same: ",
            Conclusion::Equal { .. } => "equal: ",
            Conclusion::Undecided { .. } => "not decided: ",
            Conclusion::OneSeed => "no conclusion: ",
            _ => "",
        };
        let name = if leader.values.is_empty() { String::new() } else { format!(", {}", leader.name) };
        let so_far = if summary.is_finished { "" } else { " so far" };
        format!("{kind}{label} {}{name}{so_far}", mean_text(leader))
    } else {
        let row = summary.results.first_measured()?;
        let steps = record.point(row.point)?.steps;
        // A value after fewer steps does not compare with that of another sweep.
        let (value, done, all) = (metric.text(row.objective?), count(row.steps), count(steps));
        format!("{label} {value}, point {} after {done} of {all} steps", row.point)
    })
}

/// The law of a ladder in a few words, such as `val_loss at flops 5.431e12 forecast as 1.6211 (1.5504 to 1.8754)`.
fn ladder_text(ladder: &LadderOutcome) -> String {
    match (&ladder.fit, &ladder.optimum) {
        (Some(fit), _) => {
            let forecast = |prediction: &LadderPrediction| {
                let Some(loss) = prediction.loss else {
                    return format!(
                        "law: {}; no forecast for {:.0} times the compute",
                        fit.formula, prediction.extrapolation
                    );
                };
                let [value, low, high] = [loss.value, loss.interval.low, loss.interval.high].map(metric_loss);
                format!("law: {} at flops {:.3e} forecast as {value} ({low} to {high})", fit.metric, prediction.flops)
            };
            fit.predictions.first().map_or_else(|| format!("law: {}", fit.formula), forecast)
        }
        (None, Some(SizeOptimum { flops, parameters, .. })) => {
            let [value, low, high] =
                [parameters.value, parameters.interval.low, parameters.interval.high].map(|x| count(x as u64));
            format!("best size for {flops:.3e} FLOPs: {value} parameters ({low} to {high})")
        }
        (None, None) => format!("no law: {}", printable(ladder.no_fit.as_deref().unwrap_or("no results"))),
    }
}

/// # Errors
/// If standard output cannot be written. A sweep that cannot be read is reported on standard error.
pub(super) fn run(args: &ListArgs) -> Result<Exit> {
    let root = args.root.root();
    let mut sweeps: Vec<ListedSweep> = Vec::new();
    for path in sweep_dir::folders(&root) {
        match ReadSweep::open(&path) {
            Ok(sweep) => sweeps.push(ListedSweep::new(sweep)),
            Err(error) => print_to_stderr(&printable(&format!("warning: skipped: {error}"))),
        }
    }
    // Ids end in numbers. A longer number is later.
    sweeps.sort_by_key(|sweep| (sweep.created.clone(), sweep.id.len(), sweep.id.clone()));
    print_result(args.json, &sweeps, || sweeps_text(&sweeps, &root))
}

fn sweeps_text(sweeps: &[ListedSweep], root: &Path) -> String {
    if sweeps.is_empty() {
        return format!("no sweeps in {} yet; start one with `runner sweep FILE`\n", root.display());
    }
    // Each status of a point has a column; three columns are always shown.
    let is_shown = |status: &PointStatus| {
        matches!(status, PointStatus::Done | PointStatus::Failed | PointStatus::Queued)
            || sweeps.iter().any(|sweep| sweep.counts[status] > 0)
    };
    let shown: Vec<PointStatus> = PointStatus::ALL.into_iter().filter(is_shown).collect();
    let mut columns = vec![
        Column::new("sweep", Align::Left, u8::MAX).shortened_to(12),
        Column::new("status", Align::Left, 4),
        Column::new("points", Align::Right, 3),
    ];
    let importance = |status: PointStatus| if status == PointStatus::Done { 2 } else { 1 };
    columns.extend(shown.iter().map(|status| Column::new(status.name(), Align::Right, importance(*status))));
    columns.push(Column::new("result", Align::Left, 5).shortened_to(20));
    let row = |sweep: &ListedSweep| {
        let mut cells = vec![printable(&sweep.id), sweep.status.to_owned(), count(sweep.points as u64)];
        cells.extend(shown.iter().map(|status| count(sweep.counts[status] as u64)));
        cells.push(sweep.conclusion.clone().unwrap_or_else(|| "-".to_owned()));
        cells
    };
    table_of_width(columns, sweeps.iter().map(row).collect(), table_width())
}
