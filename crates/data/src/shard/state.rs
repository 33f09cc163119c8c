//! How far an unfinished preparation has come: a small file in its folder, replaced each time a shard is whole.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::card::{CardShard, Settings};
use super::units::Place;
use crate::error::DataError;
use crate::progress::SplitName;

/// The file, while work is not done.
pub(super) const STATE: &str = ".prepare.json";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) format: u32,
    pub(super) settings: Settings,
    /// Which of the sources is read: validation, if it is one of its own, then training.
    pub(super) pass: usize,
    pub(super) place: Place,
    pub(super) counts: Counts,
    /// The shards that are whole, in the order in which they became so.
    pub(super) shards: Vec<CardShard>,
    /// Files that are not whole, and their tokens that count. Only of formats in which a split is one file.
    pub(super) open: Vec<OpenFile>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct OpenFile {
    pub(super) split: Side,
    pub(super) file: String,
    pub(super) tokens: u64,
}

/// A split, as the state has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Side {
    Train,
    Val,
}

impl From<SplitName> for Side {
    fn from(split: SplitName) -> Self {
        if split == SplitName::Train { Self::Train } else { Self::Val }
    }
}

/// What has been counted so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    pub(super) documents: u64,
    pub(super) text_bytes: u64,
    pub(super) used: Used,
}

/// Which ids came up: a bit for each.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Used(Vec<u64>);

impl Used {
    pub(super) fn new(vocabulary: usize) -> Self {
        Self(vec![0; vocabulary.div_ceil(64)])
    }

    pub(super) fn note(&mut self, tokens: &[u32]) {
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

impl Serialize for Used {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut hex = String::with_capacity(self.0.len() * 16);
        for bits in &self.0 {
            // Writing to a string does not fail.
            let _ = write!(hex, "{bits:016x}");
        }
        serializer.serialize_str(&hex)
    }
}

impl<'de> Deserialize<'de> for Used {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let hex = String::deserialize(deserializer)?;
        let parse = |chunk: &[u8]| u64::from_str_radix(std::str::from_utf8(chunk).ok()?, 16).ok();
        let words = hex.as_bytes().chunks(16).map(parse).collect::<Option<Vec<_>>>();
        words.map(Self).ok_or_else(|| serde::de::Error::custom("not hexadecimal digits"))
    }
}

impl State {
    /// The state in `folder`: `None` if nothing is unfinished there.
    pub(super) fn read(folder: &Path) -> Result<Option<Self>, DataError> {
        let path = folder.join(STATE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(DataError::io(&path)(error)),
        };
        let state = serde_json::from_slice::<Self>(&bytes).ok().filter(|state| state.format == 1);
        let state = state.ok_or_else(|| {
            DataError::file(&path, "says nothing about how far the preparation came; --force starts over")
        })?;
        Ok(Some(state))
    }

    /// Whether nothing would be lost with it.
    pub(super) fn is_empty(&self) -> bool {
        self.shards.is_empty() && self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_ids_are_kept_as_digits() {
        let mut used = Used::new(70);
        assert_eq!((used.count(), used.highest()), (0, 0));
        used.note(&[3, 69, 3, 1000]);
        assert_eq!((used.count(), used.highest()), (2, 69));
        let json = serde_json::to_string(&used).unwrap();
        assert_eq!(json, "\"00000000000000080000000000000020\"");
        assert_eq!(serde_json::from_str::<Used>(&json).unwrap(), used);
        assert!(serde_json::from_str::<Used>("\"xy\"").is_err());
    }
}
