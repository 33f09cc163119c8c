//! `timeline.json`: when each rank did what in one measured step, to be compared with the timeline of the plan.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::RecordError;
use super::files::{check_format, if_present, read_sealed_json, write_sealed_json};
use runner_spec::event::WatchedStep;

pub const TIMELINE: &str = "timeline.json";

/// Version of the file.
const FORMAT: u32 = 1;

/// The whole file.
#[derive(Serialize, Deserialize)]
struct TimelineFile<S> {
    format: u32,
    #[serde(flatten)]
    step: S,
}

pub(super) fn write(run: &Path, watched: &WatchedStep) -> Result<(), RecordError> {
    write_sealed_json(&run.join(TIMELINE), &TimelineFile { format: FORMAT, step: watched })
}

/// Reads the measured step of the run directory `run`; `None` if no step was measured.
///
/// # Errors
/// If the file is damaged, or of another version.
pub fn read(run: &Path) -> Result<Option<WatchedStep>, RecordError> {
    let path = run.join(TIMELINE);
    let file: Option<TimelineFile<WatchedStep>> = if_present(read_sealed_json(&path))?;
    let Some(TimelineFile { format, step }) = file else { return Ok(None) };
    check_format(&path, format, FORMAT)?;
    Ok(Some(step))
}
