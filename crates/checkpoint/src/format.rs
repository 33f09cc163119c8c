//! The files of a checkpoint: their names, and `state.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::hash::whole_hash;
use super::part::{PartRecord, PartSpec, StateHash};
use crate::files::FileRecord;
use runner_spec::error::PlainError;
use runner_spec::event::BestValidation;
use runner_spec::program::DataPosition;

pub const STATE: &str = "state.json";

/// Version of the checkpoint's own layout: in one part, and in several.
pub(super) const FORMAT: u32 = 1;
pub(super) const FORMAT_PARTS: u32 = 2;

/// `state.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct StateFile {
    pub(super) format: u32,
    pub(super) step: u64,
    pub(super) tokens: u64,
    /// The next row of the training data, and the rows that were read; `None` if the plan has no ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) position: Option<DataPosition>,
    /// The lowest validation loss of the run so far, which is finite.
    pub(super) best: Option<BestValidation>,
    /// The validation loss of these very weights, where it was measured and is finite.
    pub(super) val_loss: Option<f64>,
    pub(super) plan_hash: String,
    pub(super) moments: usize,
    pub(super) state_hash: String,
    pub(super) weights_hash: String,
    /// The files of a checkpoint in one part.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) files: BTreeMap<String, FileRecord>,
    /// The parts of a checkpoint in several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) parts: Vec<PartRecord>,
}

/// The position of a run at a checkpoint, as its state file has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SavedPosition {
    pub step: u64,
    /// Valid tokens seen.
    pub tokens: u64,
    /// The position in the training data; `None` if the plan has no ranks.
    pub data: Option<DataPosition>,
    /// The lowest validation loss of the run so far.
    pub best: Option<BestValidation>,
    /// The validation loss of these weights, where it was measured.
    pub val_loss: Option<f64>,
}

impl StateFile {
    pub(super) fn hash(&self) -> StateHash {
        StateHash { state: self.state_hash.clone(), weights: self.weights_hash.clone() }
    }

    pub(super) fn saved_position(&self) -> SavedPosition {
        SavedPosition {
            step: self.step,
            tokens: self.tokens,
            data: self.position,
            best: self.best,
            val_loss: self.val_loss,
        }
    }

    /// Returns the parts in order, complete and of one step; or the problem with them.
    pub(super) fn checked_parts(&self) -> Result<Vec<PartRecord>, PlainError> {
        if self.format == FORMAT {
            let (part, step, moments) = (PartSpec::WHOLE, self.step, self.moments);
            let record = PartRecord { part, step, moments, files: self.files.clone(), hash: self.hash() };
            record.check_names().map_err(|error| PlainError::failure(format!("{STATE} {error}")))?;
            return Ok(vec![record]);
        }
        check_parts(&self.parts, self.step)?;
        if self.parts.len() < 2 || self.parts.iter().any(|p| p.moments != self.moments) {
            return Err(PlainError::failure(format!("{STATE} was altered: its parts do not match it")));
        }
        if whole_hash(self.step, self.tokens, self.parts.iter().map(|p| &p.hash)) != self.hash() {
            return Err(PlainError::failure(format!(
                "{STATE} was altered: step, tokens and parts do not match its hash"
            )));
        }
        Ok(self.parts.clone())
    }
}

/// Checks that `parts`, in order, are all parts of one checkpoint of step `step`.
pub(super) fn check_parts(parts: &[PartRecord], step: u64) -> Result<(), PlainError> {
    let count = parts.first().map_or(1, |p| p.part.count);
    let moments = parts.first().map_or(0, |p| p.moments);
    for (index, wanted) in (0..count).zip(parts.iter().map(Some).chain(std::iter::repeat(None))) {
        let problem = |what: &str| PlainError::failure(format!("part {} of {count} {what}", index + 1));
        let part = wanted.filter(|p| p.part == PartSpec { index, count }).ok_or_else(|| problem("is missing"))?;
        part.check_names().map_err(|error| problem(&error.text))?;
        if part.step != step {
            return Err(problem(&format!("is from step {} instead of {step}", part.step)));
        }
        if part.moments != moments {
            return Err(problem(&format!("has {} optimizer moments, but part 1 has {moments}", part.moments)));
        }
    }
    if parts.len() > count {
        return Err(PlainError::failure(format!("expected {count} parts, found {}", parts.len())));
    }
    Ok(())
}
