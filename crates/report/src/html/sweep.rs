//! A sweep as the page shows it: a row for each point, and what they show.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::ladder::{LadderParagraph, describe_outcome};
use runner_spec::error::CommandError;
use runner_sweep::ladder::LadderOutcome;
use runner_sweep::summary::{ReadSweep, SweepSummary};
use runner_sweep::verdict::SweepVerdict;
use runner_sweep::{Goal, ResultsRow, names_of};

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
    let ReadSweep { record, progress, summary, .. } = ReadSweep::open(folder)?;
    let SweepSummary { ladder, results, verdict, problems, .. } = summary;
    let mut seen = BTreeSet::new();
    let runs = progress.points.into_iter().flatten().map(|run| run.path);
    let paths = runs.filter(|path| seen.insert(path.clone())).collect();
    let parameters = names_of(record.points.iter().map(|point| &point.values)).into_iter().map(str::to_owned).collect();
    let mut rows = results.rows;
    // The rungs of a ladder are in the order of their size.
    if ladder.is_none() {
        rows.sort_by_key(|row| row.point);
    }
    let table = SweepTable {
        metric: record.objective.metric.key().into_owned(),
        label: record.objective.label(),
        minimize: record.objective.goal() == Goal::Minimize,
        id: record.id,
        rows,
        best: verdict.best().map_or_else(Vec::new, |setting| setting.points.clone()),
        verdict,
        ladder_text: ladder.as_ref().map(describe_outcome).unwrap_or_default(),
        ladder,
        incomparable: results.incomparable,
        parameters,
        problems,
    };
    Ok((table, paths))
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_sweep::sweep_dir::{self, SweepDir};
    use runner_sweep::testing::sweep;

    #[test]
    fn a_sweep_that_has_not_started_has_its_points() {
        let root = tempfile::tempdir().unwrap();
        let experiments = ["a: 1\n".to_owned(), "a: 2\n".to_owned(), "a: 3\n".to_owned()];
        let made = SweepDir::create(root.path(), sweep(), "sweep: {}\n", &experiments, false).unwrap();
        let (table, runs) = load_sweep(made.path()).unwrap();
        assert_eq!((table.rows.len(), table.best.clone(), runs.len()), (sweep().points.len(), Vec::new(), 0));
        assert!(table.rows.iter().all(|row| row.values.len() == table.parameters.len() && row.objective.is_none()));
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
