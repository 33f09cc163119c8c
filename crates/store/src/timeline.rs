//! `timeline.json`: when each rank did what in one measured step, to be compared with the timeline of the plan.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::files::{check_format, read_json_if_present, write_json};
pub use runner_spec::event::{WatchedMemory as MeasuredMemory, WatchedSpan as MeasuredSpan, WatchedStep};

pub const TIMELINE: &str = "timeline.json";

/// Version of the file.
pub const FORMAT: u32 = 1;

/// The whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredStep {
    pub format: u32,
    pub step: u64,
    pub end: f64,
    pub spans: Vec<MeasuredSpan>,
    #[serde(default)]
    pub memory: Vec<MeasuredMemory>,
}

pub(super) fn write(run: &Path, watched: &WatchedStep) -> Result<(), StoreError> {
    let WatchedStep { step, end, spans, memory } = watched.clone();
    write_json(&run.join(TIMELINE), &MeasuredStep { format: FORMAT, step, end, spans, memory })
}

/// Reads the measured step of the run directory `run`; `None` if no step was measured.
///
/// # Errors
/// If the file is damaged, or of another version.
pub fn read(run: &Path) -> Result<Option<MeasuredStep>, StoreError> {
    let path = run.join(TIMELINE);
    let measured: Option<MeasuredStep> = read_json_if_present(&path)?;
    measured.as_ref().map_or(Ok(()), |measured| check_format(&path, measured.format, FORMAT))?;
    Ok(measured)
}
