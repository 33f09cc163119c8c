//! The places of parameters in a flat buffer.
//!
//! Decayed tensors come first, then the others, each group in registration order. Gradients and optimizer moments are
//! buffers of the same shape, so an update, a norm, a bucket or a shard is a range.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::ParamSpec;

/// One parameter's place in the flat buffer, in elements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParamEntry {
    pub spec: ParamSpec,
    pub offset: usize,
}

impl ParamEntry {
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.spec.len()
    }
}

/// The places of all parameters of a rank. `entries` are in buffer order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParamLayout {
    pub entries: Vec<ParamEntry>,
    pub total: usize,
    /// Elements of the decayed group, which the buffer starts with.
    pub decayed: usize,
}

impl ParamLayout {
    /// Lays out parameters given in registration order.
    pub fn new(specs: Vec<ParamSpec>) -> Self {
        let (decayed, rest): (Vec<_>, Vec<_>) = specs.into_iter().partition(ParamSpec::decays);
        let decayed_total = decayed.iter().map(ParamSpec::len).sum();
        let mut offset = 0;
        let mut entries = Vec::with_capacity(decayed.len() + rest.len());
        for spec in decayed.into_iter().chain(rest) {
            let len = spec.len();
            entries.push(ParamEntry { spec, offset });
            offset += len;
        }
        Self { entries, total: offset, decayed: decayed_total }
    }

    /// The index of the parameter called `name`.
    ///
    /// # Errors
    /// If there is none.
    pub fn index(&self, name: &str) -> Result<usize, UnknownParameter> {
        self.entries.iter().position(|e| e.spec.name == name).ok_or_else(|| UnknownParameter(name.to_owned()))
    }

    /// The entry called `name`.
    pub fn entry(&self, name: &str) -> Option<&ParamEntry> {
        self.entries.iter().find(|e| e.spec.name == name)
    }
}

/// Joins ranges that follow on each other without a gap.
pub fn join_ranges(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

/// A layout was asked for a parameter that it does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the layout has no parameter {0}")]
pub struct UnknownParameter(pub String);
