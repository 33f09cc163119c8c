//! The runs that sweeps need: what the removal of runs and the collection of garbage ask of sweeps.

use std::path::{Path, PathBuf};

use crate::progress::SweepProgress;
use crate::record::{SweepRecord, sweep_dir};
use runner_record::catalog::ListedRun;
use runner_record::files::file_name;

/// The runs that a sweep counts among its points.
#[derive(Debug)]
pub struct CountedRuns {
    /// The id of the sweep.
    pub sweep: String,
    pub is_finished: bool,
    /// The ids of the runs, with the numbers of their points.
    pub points: Vec<(String, usize)>,
}

impl CountedRuns {
    /// Reads the runs of the sweep of `record` from the folder of runs `root`.
    #[must_use]
    pub fn read(root: &Path, record: &SweepRecord) -> Self {
        let progress = SweepProgress::read(root, record);
        let is_finished = progress.is_finished(record);
        let runs = record.points.iter().zip(progress.points);
        let points = runs.filter_map(|(point, run)| Some((run?.id, point.index))).collect();
        Self { sweep: record.id.clone(), is_finished, points }
    }
}

/// The sweeps in `root` that may count `runs` among their points, each with the runs that it counts. A sweep whose record cannot be read
/// counts as not finished, and counts the runs whose manifests name it.
#[must_use]
pub fn sweeps_of_runs(root: &Path, runs: &[&ListedRun]) -> Vec<CountedRuns> {
    let of_sweep = |folder: PathBuf| {
        let mut counted = match sweep_dir::read_record(&folder) {
            // Reading the progress reads the metrics of all points, so sweeps of other experiments are skipped first.
            Ok(record) if record.points.iter().all(|p| runs.iter().all(|run| run.name.as_ref() != Some(&p.name))) => {
                return None;
            }
            Ok(record) => CountedRuns::read(root, &record),
            Err(_) => {
                let id = file_name(&folder);
                let named = runs.iter().filter_map(|run| Some((run.id.clone(), run.sweep.as_ref()?)));
                let points = named.filter(|(_, point)| point.id == id).map(|(run, point)| (run, point.point)).collect();
                CountedRuns { sweep: id, is_finished: false, points }
            }
        };
        counted.points.retain(|(id, _)| runs.iter().any(|run| run.id == *id));
        Some(counted).filter(|counted| !counted.points.is_empty())
    };
    sweep_dir::folders(root).into_iter().filter_map(of_sweep).collect()
}

/// True if the sweep `id` of the runs in `root` exists and is not finished, so that it needs its runs and their checkpoints. A sweep
/// whose record cannot be read counts as not finished.
#[must_use]
pub fn is_sweep_unfinished(root: &Path, id: &str) -> bool {
    let is_unfinished = |record| !SweepProgress::read(root, &record).is_finished(&record);
    sweep_dir::folder_of_id(root, id).is_some_and(|folder| sweep_dir::read_record(&folder).map_or(true, is_unfinished))
}
