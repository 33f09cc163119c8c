//! The checkpoints of a run as the page lists them.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::problems::or_problem;
use runner_record::checkpoint;
use runner_record::files::{if_present, read_sealed_json};

/// Checkpoints that are listed at most.
const MAX_CHECKPOINTS: usize = 200;

/// One checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct ListedCheckpoint {
    pub(super) step: u64,
    /// The size of all its files.
    pub(super) bytes: u64,
    pub(super) val_loss: Option<f64>,
    pub(super) weights_hash: Option<String>,
    /// True if its validation loss is the lowest of the listed checkpoints.
    pub(super) best: bool,
}

/// The fields of a checkpoint's `state.json` that are shown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CheckpointState {
    val_loss: Option<f64>,
    weights_hash: Option<String>,
}

/// The checkpoints in `folder`, oldest first; of very many the newest. State files that cannot be read go to `problems`.
pub(super) fn list_checkpoints(folder: &Path, problems: &mut Vec<String>) -> Vec<ListedCheckpoint> {
    let steps = checkpoint::saved_steps(folder).unwrap_or_else(|error| {
        problems.push(error.to_string());
        Vec::new()
    });
    let mut out: Vec<ListedCheckpoint> = steps[steps.len().saturating_sub(MAX_CHECKPOINTS)..]
        .iter()
        .map(|&step| {
            let path = folder.join(checkpoint::dir_name(step));
            let CheckpointState { val_loss, weights_hash } =
                or_problem(if_present(read_sealed_json(&path.join("state.json"))), problems).unwrap_or_default();
            let sizes = fs::read_dir(&path).into_iter().flatten().filter_map(|entry| entry.ok()?.metadata().ok());
            let bytes = sizes.map(|meta| meta.len()).sum();
            ListedCheckpoint { step, bytes, val_loss, weights_hash, best: false }
        })
        .collect();
    let losses = out.iter_mut().filter_map(|c| Some((c.val_loss.filter(|loss| loss.is_finite())?, c)));
    if let Some((_, best)) = losses.min_by(|a, b| a.0.total_cmp(&b.0)) {
        best.best = true;
    }
    out
}
