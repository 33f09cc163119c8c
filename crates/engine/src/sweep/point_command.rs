//! The command line of the process that trains a point.

use std::ffi::OsString;
use std::path::Path;

use runner_config::LoadOptions;
use runner_lab::sweep::record::{PlannedPoint, SweepRecord};
use runner_lab::sweep_dir::{damaged_copy, point_file};
use runner_spec::diagnostic::ConfigError;
use runner_store::StoreError;

/// The arguments of `runner` that train `point` of the sweep in `path`, to step `until` or to its end.
///
/// # Errors
/// If the file of the point's experiment, which the sweep wrote, is missing or damaged.
pub fn point_arguments(
    path: &Path,
    record: &SweepRecord,
    point: &PlannedPoint,
    runs: &Path,
    threads: usize,
    until: Option<u64>,
) -> Result<Vec<OsString>, StoreError> {
    let file = point_file(path, point.index);
    let options = LoadOptions { absent_files: true, ..LoadOptions::default() };
    let loaded = runner_config::load(&file, &options).map_err(|mistakes| damaged_copy(&file, &mistakes))?;
    // A part of the file may be legal too. Another version may write the same experiment in other words.
    if record.version == env!("CARGO_PKG_VERSION") && runner_config::to_yaml(&loaded.experiment) != loaded.text {
        return Err(damaged_copy(&file, &ConfigError::new(Vec::new())));
    }
    let mut arguments: Vec<OsString> = vec!["apply".into(), file.into()];
    arguments.extend(["--runs".into(), runs.into(), "--threads".into(), threads.to_string().into()]);
    arguments.extend(["--expect-plan".into(), OsString::from(&point.plan_hash)]);
    arguments.extend(["--sweep-point".into(), format!("{}:{}", record.id, point.index).into()]);
    if let Some(step) = until {
        arguments.extend(["--until-step".into(), step.to_string().into()]);
    }
    Ok(arguments)
}
