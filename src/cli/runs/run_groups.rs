//! Sweeps named where runs are: each stands for the runs of its points.

use std::path::{Path, PathBuf};

use crate::cli::terminal::exit::Result;
use runner_compare::planned_experiment::{cluster_of, mathematics_of_setting};
use runner_compare::run_record::{RunRecord, read_experiment_and_plan};
use runner_plan::MeasurementBasis;
use runner_record::catalog;
use runner_report::run_to_compare::RunToCompare;
use runner_sweep::progress::SweepProgress;
use runner_sweep::{stopped_points, sweep_dir};

/// The folder of the sweep that `wanted` names; `None` if it names a run. The beginning of a run's id is preferred to that of a sweep's, but
/// the name of a sweep to the beginning of several runs.
///
/// # Errors
/// If `wanted` is the beginning of the ids of several sweeps.
pub(crate) fn find_sweep(root: &Path, wanted: &str) -> Result<Option<PathBuf>> {
    if let Some(folder) = sweep_dir::find_folder(root, wanted) {
        return Ok(Some(folder));
    }
    let is_its_name = |folder: &PathBuf| sweep_dir::read_record(folder).is_ok_and(|record| record.name == wanted);
    Ok(match catalog::resolve(root, wanted) {
        Ok(_) => None,
        Err(error) if error.is_ambiguous() => sweep_dir::find_newest(root, wanted)?.filter(is_its_name),
        Err(_) => sweep_dir::find_newest(root, wanted)?,
    })
}

/// The directories of the runs of the sweep in `folder`, in the order of their points.
///
/// # Errors
/// If the record of the sweep cannot be read.
pub(crate) fn runs_of_sweep(folder: &Path) -> Result<Vec<PathBuf>> {
    let record = sweep_dir::read_record(folder)?;
    let progress = SweepProgress::read(&sweep_dir::runs_folder(folder), &record);
    let mut paths: Vec<PathBuf> = Vec::new();
    for run in progress.points.into_iter().flatten() {
        if !paths.contains(&run.path) {
            paths.push(run.path);
        }
    }
    Ok(paths)
}

/// Reads the run in `path`.
///
/// # Errors
/// If its settings, its plan or its record cannot be read.
pub(crate) fn read_run(path: &Path) -> Result<RunToCompare> {
    let (experiment, plan) = read_experiment_and_plan(path)?;
    Ok(RunToCompare {
        mathematics: mathematics_of_setting(&experiment, &plan.data, &cluster_of(&plan)).ok(),
        record: RunRecord::read(path, stopped_points::describe(path).status)?,
        experiment,
        basis: MeasurementBasis::of_plan(&plan),
    })
}
