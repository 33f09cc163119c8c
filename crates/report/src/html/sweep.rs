//! A sweep as the page shows it: a row for each point, and the importance of its parameters.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::ladder::{LadderParagraph, describe_outcome};
use crate::sweep_caveats::caveat_text;
use crate::sweep_results::describe_validation_use;
use runner_spec::error::CommandError;
use runner_sweep::ladder::LadderOutcome;
use runner_sweep::progress::SweepProgress;
use runner_sweep::record::SweepRecord;
use runner_sweep::summary::SweepSummary;
use runner_sweep::sweep_dir;
use runner_sweep::verdict::SweepVerdict;
use runner_sweep::{Goal, Importance, ResultsRow};

/// A sweep.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SweepTable {
    pub(super) id: String,
    /// The objective's metric, such as `val_loss`.
    metric: String,
    /// The same as results show it.
    label: String,
    /// True if lower values of the metric are better.
    minimize: bool,
    /// The parameters that vary, in the order of the sweep file.
    pub(super) parameters: Vec<String>,
    /// The points, by number.
    pub(super) rows: Vec<ResultsRow>,
    /// The points of the setting that is shown to be the best one; none if no setting is.
    best: Vec<usize>,
    verdict: SweepVerdict,
    /// What the results of a ladder show, and the same in words.
    ladder: Option<LadderOutcome>,
    ladder_text: Vec<LadderParagraph>,
    /// How many settings have been compared on the validation set, in one sentence, if the points are compared by it.
    validation_use: Option<String>,
    /// What must be known of the leading setting, each in one sentence.
    caveats: Vec<String>,
    /// The importance of each parameter, highest first.
    importance: Vec<Importance>,
    /// The milestone at which importance compares the points, unless it compares them at the end.
    measured_at: Option<String>,
    /// The reason why the objectives of the points do not compare, if they do not.
    incomparable: Option<String>,
    /// Files that cannot be read, each in one sentence.
    problems: Vec<String>,
}

/// Reads the sweep in `folder`, and lists the directories of its points' runs, in the order of the points.
///
/// # Errors
/// If there is no sweep, or it cannot be read.
pub(super) fn load_sweep(folder: &Path) -> Result<(SweepTable, Vec<PathBuf>), CommandError> {
    let record = sweep_dir::read_record(folder)?;
    let progress = SweepProgress::read(&sweep_dir::runs_folder(folder), &record);
    let summary = SweepSummary::new(folder, &record, &progress);
    let mut seen = BTreeSet::new();
    let runs = progress.points.into_iter().flatten().map(|run| run.path);
    let paths = runs.filter(|path| seen.insert(path.clone())).collect();
    let validation_use = summary.count_validation_use(folder).map(describe_validation_use);
    Ok((SweepTable { validation_use, ..table(&record, summary) }, paths))
}

fn table(record: &SweepRecord, summary: SweepSummary) -> SweepTable {
    let mut parameters: Vec<String> = Vec::new();
    for (name, _) in record.points.iter().flat_map(|point| &point.values) {
        if !parameters.contains(name) {
            parameters.push(name.clone());
        }
    }
    let caveats = summary.caveats.iter().map(caveat_text).collect();
    let best = summary.verdict.best().map_or_else(Vec::new, |setting| setting.points.clone());
    let incomparable = summary.results.incomparable;
    let mut rows = summary.results.rows;
    // The rungs of a ladder are in the order of their size.
    if summary.ladder.is_none() {
        rows.sort_by_key(|row| row.point);
    }
    SweepTable {
        id: record.id.clone(),
        metric: record.objective.metric.key().into_owned(),
        label: record.objective.label(),
        minimize: record.objective.goal == Goal::Minimize,
        rows,
        best,
        verdict: summary.verdict,
        ladder_text: summary.ladder.as_ref().map(describe_outcome).unwrap_or_default(),
        ladder: summary.ladder,
        validation_use: None,
        caveats,
        incomparable,
        parameters,
        importance: summary.importance,
        measured_at: summary.measured_at,
        problems: summary.problems,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_sweep::sweep_dir::{SweepDir, SweepFiles};
    use runner_sweep::testing::sweep;

    #[test]
    fn a_sweep_that_has_not_started_has_its_points() {
        let root = tempfile::tempdir().unwrap();
        let experiments = ["a: 1\n".to_owned(), "a: 2\n".to_owned(), "a: 3\n".to_owned()];
        let files = SweepFiles { record: sweep(), text: "sweep: {}\n", experiments: &experiments, is_private: false };
        let made = SweepDir::create(root.path(), files).unwrap();
        let (table, runs) = load_sweep(made.path()).unwrap();
        assert_eq!((table.rows.len(), table.best.clone(), runs.len()), (sweep().points.len(), Vec::new(), 0));
        assert!(table.rows.iter().all(|row| row.values.len() == table.parameters.len() && row.objective.is_none()));
        assert!(matches!(table.problems.as_slice(), [one] if one.contains("sweep.yaml")), "{:?}", table.problems);
        let id = made.record().id.clone();
        assert_eq!(sweep_dir::find_folder(root.path(), &id).as_deref(), Some(made.path()));
        assert_eq!(sweep_dir::find_folder(root.path(), made.path().to_str().unwrap()).as_deref(), Some(made.path()));
        assert_eq!(
            (sweep_dir::find_folder(root.path(), ""), sweep_dir::find_folder(root.path(), "none")),
            (None, None)
        );
        std::fs::write(made.path().join(runner_record::catalog::SWEEP_RECORD), "{").unwrap();
        assert!(load_sweep(made.path()).is_err());
    }
}
