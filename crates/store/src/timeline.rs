//! `timeline.json`: when each rank did what in one step that was watched, to be put beside the plan's timeline.

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::files::{read_json, write_json};
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

/// The watched step of the run directory `run`; `None` if it has none.
///
/// # Errors
/// If the file is damaged, or of another version.
pub fn read(run: &Path) -> Result<Option<MeasuredStep>, StoreError> {
    let path = run.join(TIMELINE);
    match read_json::<MeasuredStep>(&path) {
        Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Ok(measured) if measured.format != FORMAT => {
            let message = format!("format {}, this version reads format {FORMAT}", measured.format);
            Err(StoreError::damaged(&path, message))
        }
        other => other.map(Some),
    }
}
