//! The state of an unfinished preparation: a small file in its folder, replaced after each complete shard.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::batches::TextPosition;
use super::card::{CardShard, Settings};
use crate::error::{DataError, Result};
use crate::split_name::SplitName;
use runner_files::{if_present, read_regular};

/// The state's file.
pub(super) const STATE: &str = ".prepare.json";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ResumeState {
    pub(super) format: u32,
    pub(super) settings: Settings,
    /// The index of the source that is read: first a separate validation source, if there is one, then training.
    pub(super) pass: usize,
    #[serde(rename = "place")]
    pub(super) position: TextPosition,
    pub(super) counts: Counts,
    /// The complete shards, in the order in which they were completed.
    pub(super) shards: Vec<CardShard>,
    /// Incomplete files. Only formats with one file for each split have them.
    pub(super) open: Vec<OpenFile>,
}

/// An incomplete file, of which the first `tokens` tokens count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct OpenFile {
    /// `train` or `val`.
    pub(super) split: String,
    pub(super) file: String,
    pub(super) tokens: u64,
    /// Hash of these tokens as stored, without the header.
    pub(super) blake3: String,
}

/// Counts of the text so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    pub(super) documents: u64,
    pub(super) text_bytes: u64,
    pub(super) used: UsedIds,
}

/// The set of ids that occur, one bit for each id.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct UsedIds(Vec<u64>);

impl UsedIds {
    pub(super) fn new(vocabulary: usize) -> Self {
        Self(vec![0; vocabulary.div_ceil(64)])
    }

    pub(super) fn add(&mut self, tokens: &[u32]) {
        for &token in tokens {
            if let Some(bits) = self.0.get_mut(token as usize / 64) {
                *bits |= 1 << (token % 64);
            }
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|bits| u64::from(bits.count_ones())).sum()
    }

    pub(super) fn highest(&self) -> u32 {
        let last = self.0.iter().rposition(|&bits| bits != 0);
        last.map_or(0, |at| at as u32 * 64 + 63 - self.0[at].leading_zeros())
    }
}

impl Serialize for UsedIds {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let hex: Vec<String> = self.0.iter().map(|bits| format!("{bits:016x}")).collect();
        serializer.serialize_str(&hex.concat())
    }
}

impl<'de> Deserialize<'de> for UsedIds {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let hex = String::deserialize(deserializer)?;
        let parse = |chunk: &[u8]| u64::from_str_radix(std::str::from_utf8(chunk).ok()?, 16).ok();
        let words = hex.as_bytes().chunks(16).map(parse).collect::<Option<Vec<_>>>();
        words.map(Self).ok_or_else(|| serde::de::Error::custom("not hexadecimal digits"))
    }
}

impl ResumeState {
    /// Reads the state in `folder`; `None` if nothing is unfinished there.
    pub(super) fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(STATE);
        let bytes = if_present(read_regular(&path)).map_err(DataError::io(&path))?;
        let Some(bytes) = bytes else { return Ok(None) };
        let state = serde_json::from_slice::<Self>(&bytes).ok().filter(|state| state.format == 1);
        let state = state.ok_or_else(|| {
            DataError::file(&path, "does not record how far the preparation came; use --force to start over")
        })?;
        Ok(Some(state))
    }

    /// The complete shards of `split`.
    pub(super) fn shards_of(&self, split: SplitName) -> impl Iterator<Item = &CardShard> {
        self.shards.iter().filter(move |shard| shard.split == split.short())
    }

    /// True if the state can be deleted without losing work.
    pub(super) fn is_empty(&self) -> bool {
        self.shards.is_empty() && self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_ids_are_kept_as_digits() {
        let mut used = UsedIds::new(70);
        assert_eq!((used.count(), used.highest()), (0, 0));
        used.add(&[3, 69, 3, 1000]);
        assert_eq!((used.count(), used.highest()), (2, 69));
        let json = serde_json::to_string(&used).unwrap();
        assert_eq!(json, "\"00000000000000080000000000000020\"");
        assert_eq!(serde_json::from_str::<UsedIds>(&json).unwrap(), used);
        assert!(serde_json::from_str::<UsedIds>("\"xy\"").is_err());
    }
}
