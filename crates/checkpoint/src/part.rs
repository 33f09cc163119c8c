//! The parts of a checkpoint: each holds the tensors that one rank owns, in two files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::files::FileRecord;
use runner_spec::error::PlainError;

/// The file of the weights, in a checkpoint in one part.
pub const MODEL: &str = "model.safetensors";
/// The file of the moments, which are called `<name>.m` and `<name>.v`.
pub const OPTIMIZER: &str = "optimizer.safetensors";

/// The two files of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartFileKind {
    Model,
    Optimizer,
}

impl PartFileKind {
    pub(super) const BOTH: [Self; 2] = [Self::Model, Self::Optimizer];

    /// The file's name in part `part`; shards are named as Hugging Face does.
    pub(super) fn file_name(self, part: PartSpec) -> String {
        let (whole, stem) = match self {
            Self::Model => (MODEL, "model"),
            Self::Optimizer => (OPTIMIZER, "optimizer"),
        };
        match part {
            PartSpec { count: 1, .. } => whole.to_owned(),
            PartSpec { index, count } => format!("{stem}-{:05}-of-{count:05}.safetensors", index + 1),
        }
    }

    /// The sections of a state's buffer that the file holds.
    pub(super) fn sections(self, moments: usize) -> std::ops::Range<usize> {
        match self {
            Self::Model => 0..1,
            Self::Optimizer => 1..moments + 1,
        }
    }
}

/// BLAKE3 hashes, 64 hex digits each. Numbers enter as little-endian bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateHash {
    /// Over step, tokens and the whole buffer: weights, then moments.
    pub state: String,
    /// Over the weights alone.
    pub weights: String,
}

/// The index of a part, from 0, and the number of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartSpec {
    pub index: usize,
    pub count: usize,
}

impl PartSpec {
    /// The only part of a checkpoint.
    pub const WHOLE: Self = Self { index: 0, count: 1 };
}

/// The content of a part, as its rank reports it to the leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRecord {
    pub part: PartSpec,
    pub step: u64,
    pub moments: usize,
    pub files: BTreeMap<String, FileRecord>,
    /// Over the tensors' bytes, weights before moments. Where there is one part, `state` begins with step and tokens.
    pub hash: StateHash,
}

impl PartRecord {
    /// The record of the part's file of `kind`.
    pub(super) fn file(&self, kind: PartFileKind) -> Option<&FileRecord> {
        self.files.get(&kind.file_name(self.part))
    }

    /// Checks that the record describes the two files of a part. The message of the error continues the name of the file or part.
    pub(super) fn check_names(&self) -> Result<(), PlainError> {
        match PartFileKind::BOTH.iter().find(|kind| self.file(**kind).is_none()) {
            Some(kind) => Err(PlainError::failure(format!("does not describe {}", kind.file_name(self.part)))),
            None if self.files.len() > 2 => Err(PlainError::failure("describes files that a checkpoint does not have")),
            None => Ok(()),
        }
    }
}
