//! The summary of a run on which no process works.

use std::path::Path;

use runner_inputs::{RunEvent, RunObserver};
use runner_record::manifest::Manifest;
use runner_record::record_check::find_damage_of_metrics;
use runner_record::run_dir;
use runner_record::summary::Summary;
use runner_spec::error::Result;

/// The summary of the run in `path`. One that cannot be read counts as missing, and `observer` receives a warning.
pub(crate) fn read_summary_or_warn(path: &Path, observer: &mut dyn RunObserver) -> Option<Summary> {
    run_dir::read_summary(path).unwrap_or_else(|unreadable| {
        observer.observe(&RunEvent::Warning(&format!("skipped: {unreadable}")));
        None
    })
}

/// Reports to `observer` that the run in `path`, which other commands call `name`, has nothing left to do, and that it is up to date unless
/// `is_damaged`.
pub(crate) fn report_nothing_to_do(path: &Path, name: &str, is_damaged: bool, observer: &mut dyn RunObserver) {
    let (summary, up_to_date) = (read_summary_or_warn(path, observer), !is_damaged);
    let summary = summary.as_ref();
    observer.observe(&RunEvent::End { run: path, name, summary, up_to_date, failed: false, interrupted: false });
}

/// Describes what is damaged or missing in the metrics of the run in `path`; `None` if nothing is. A summary that cannot be read counts as
/// missing.
///
/// # Errors
/// If the record cannot be read.
pub(crate) fn find_damage(path: &Path, manifest: &Manifest) -> Result<Option<String>> {
    let summary = run_dir::read_summary(path).ok().flatten();
    Ok(find_damage_of_metrics(path, manifest, summary.as_ref())?)
}

/// Warns `observer` if the metrics of the run in `path`, which has nothing left to do, are damaged. Returns true if they are.
pub(crate) fn warn_of_damaged_metrics(
    path: &Path,
    manifest: &Manifest,
    observer: &mut dyn RunObserver,
) -> Result<bool> {
    let Some(damage) = find_damage(path, manifest)? else { return Ok(false) };
    observer.observe(&RunEvent::Warning(&format!("the record of {} is damaged: {damage}", manifest.id)));
    Ok(true)
}
