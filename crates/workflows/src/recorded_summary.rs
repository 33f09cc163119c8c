//! The summary of a run on which no process works.

use std::path::Path;

use runner_inputs::{RunEvent, RunObserver};
use runner_record::run_dir;
use runner_record::summary::Summary;

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
