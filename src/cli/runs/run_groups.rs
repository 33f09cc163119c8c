//! Sweeps named where runs are: each stands for the runs of its points.

use std::path::{Path, PathBuf};

use crate::cli::terminal::exit::Result;
use crate::cli::terminal::output::print_to_stderr;
use runner_compare::planned_experiment::{cluster_of, mathematics_of_setting};
use runner_compare::run_record::{RunRecord, read_experiment_and_plan};
use runner_plan::MeasurementBasis;
use runner_record::catalog;
use runner_record::files::file_name;
use runner_report::comparison::RunToCompare;
use runner_spec::format::printable;
use runner_sweep::progress::SweepProgress;
use runner_sweep::{stopped_points, sweep_dir};

/// The folder of the sweep that `wanted` names; `None` if it names a run. The beginning of a run's id is preferred to that of a sweep's, but
/// the name of a sweep to the beginning of several runs. Of the sweeps of a file that was changed, its name stands for the newest, which a
/// note states.
///
/// # Errors
/// If `wanted` is the beginning of the ids of several sweeps.
pub(crate) fn find_sweep(root: &Path, wanted: &str) -> Result<Option<PathBuf>> {
    if let Some(folder) = sweep_dir::find_folder(root, wanted) {
        return Ok(Some(folder));
    }
    let is_its_name = |folder: &Path| sweep_dir::read_record(folder).is_ok_and(|record| record.name == wanted);
    match catalog::resolve(root, wanted) {
        Ok(run) => {
            // Sweeps of several files are as ambiguous as none.
            let found = sweep_dir::find_newest(root, wanted).ok().flatten();
            if let Some((folder, _)) = found.filter(|(folder, _)| is_its_name(folder)) {
                let (run, group) = (file_name(&run), file_name(&folder));
                let text =
                    format!("note: {wanted} stands for the run {run} here; the runs of {group} are named by that id");
                print_to_stderr(&printable(&text));
            }
            Ok(None)
        }
        Err(error) => {
            let mut found = sweep_dir::find_newest(root, wanted)?;
            if error.is_ambiguous() {
                found = found.filter(|(folder, _)| is_its_name(folder));
            }
            let Some((folder, older)) = found else { return Ok(None) };
            if !older.is_empty() {
                let older: Vec<String> = older.iter().map(|folder| file_name(folder)).collect();
                let (newest, older) = (file_name(&folder), older.join(", "));
                let text = format!(
                    "note: {wanted} stands for {newest}, the newest of its file; earlier versions are named by their ids: {older}"
                );
                print_to_stderr(&printable(&text));
            }
            Ok(Some(folder))
        }
    }
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
