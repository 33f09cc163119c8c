//! Runs that early stopping ended: their own status is `interrupted`, and the record of the sweep shows that they will not resume.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::slice;

use crate::progress::SweepProgress;
use crate::record::sweep_dir;
use runner_record::catalog::{self, ListedRun, ListedStatus};

/// Describes the run in `path` as [`catalog::describe`] does, with the status that it has by its sweep.
#[must_use]
pub fn describe(path: &Path) -> ListedRun {
    let mut listed = catalog::describe(path);
    mark_stopped(path.parent().unwrap_or(Path::new(".")), slice::from_mut(&mut listed));
    listed
}

/// Gives the status `Stopped` to those of `runs`, in the folder `root`, that early stopping ended in a finished sweep.
pub fn mark_stopped(root: &Path, runs: &mut [ListedRun]) {
    let mut stopped_by_sweep: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for run in runs.iter_mut().filter(|run| run.status == ListedStatus::Interrupted) {
        let Some(sweep) = &run.sweep else { continue };
        let stopped = stopped_by_sweep.entry(sweep.id.clone()).or_insert_with(|| stopped_points(root, &sweep.id));
        if stopped.contains(&run.id) {
            run.status = ListedStatus::Stopped;
        }
    }
}

/// The ids of the runs that early stopping ended in the sweep `id`; none before the sweep is finished, or if it cannot be read.
fn stopped_points(root: &Path, id: &str) -> BTreeSet<String> {
    let record = sweep_dir::record_of_id(root, id).filter(|record| record.early_stop.is_some());
    let Some(record) = record else { return BTreeSet::new() };
    let progress = SweepProgress::read(root, &record);
    if !progress.is_finished(&record) {
        return BTreeSet::new();
    }
    let judged = progress.points.iter().enumerate().filter(|(position, _)| progress.is_judged(&record, *position));
    judged.filter_map(|(_, run)| Some(run.as_ref()?.id.clone())).collect()
}
