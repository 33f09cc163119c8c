//! The command line of the process that trains a point.

use std::ffi::OsString;
use std::path::Path;

use runner_lab::sweep::record::{PlannedPoint, SweepRecord};
use runner_lab::sweep_dir::point_file;

/// The arguments of `runner` that train `point` of the sweep in `path`, to step `until` or to its end.
#[must_use]
pub fn point_arguments(
    path: &Path,
    record: &SweepRecord,
    point: &PlannedPoint,
    runs: &Path,
    threads: usize,
    until: Option<u64>,
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["apply".into(), point_file(path, point.index).into()];
    arguments.extend(["--runs".into(), runs.into(), "--threads".into(), threads.to_string().into()]);
    arguments.extend(["--expect-plan".into(), OsString::from(&point.plan_hash)]);
    arguments.extend(["--sweep-point".into(), format!("{}:{}", record.id, point.index).into()]);
    if let Some(step) = until {
        arguments.extend(["--until-step".into(), step.to_string().into()]);
    }
    arguments
}
