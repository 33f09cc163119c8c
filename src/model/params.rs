//! Flat parameter storage: one buffer, and where in it each named parameter lies.
//!
//! Decayed tensors come first, then the others, each group in registration order. Gradients and optimizer moments are
//! buffers of the same shape, so an update, a norm, a bucket or a shard is a range.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Result, Tensor, bail};
use serde::{Deserialize, Serialize};

use crate::model::spec::ParamSpec;

/// One parameter's place in the flat buffer, in elements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParamEntry {
    pub spec: ParamSpec,
    pub offset: usize,
}

impl ParamEntry {
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.spec.len()
    }
}

/// Where everything lies. `entries` are in buffer order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParamLayout {
    pub entries: Vec<ParamEntry>,
    pub total: usize,
    /// Elements of the decayed group, which the buffer starts with.
    pub decayed: usize,
}

impl ParamLayout {
    /// Lays out parameters given in registration order.
    #[must_use]
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
    pub fn index(&self, name: &str) -> Result<usize> {
        match self.entries.iter().position(|e| e.spec.name == name) {
            Some(index) => Ok(index),
            None => bail!("the layout has no parameter {name}"),
        }
    }

    /// The entry called `name`.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&ParamEntry> {
        self.entries.iter().find(|e| e.spec.name == name)
    }
}

/// A flat buffer seen through its layout: weights, or gradients.
#[derive(Debug, Clone)]
pub struct Params {
    pub layout: Arc<ParamLayout>,
    /// [layout.total]
    pub flat: Tensor,
    /// On a GPU in a bf16 run, where `flat` is a bf16 tensor: the f32 buffer, [layout.total], whose gains and biases norms read.
    vectors: Option<Tensor>,
}

impl Params {
    /// All parameters in one buffer, [layout.total].
    #[must_use]
    pub fn new(layout: Arc<ParamLayout>, flat: Tensor) -> Self {
        Self { layout, flat, vectors: None }
    }

    /// What products read in `rounded`, gains and biases of norms in `exact`; both [layout.total].
    #[must_use]
    pub fn of_two(layout: Arc<ParamLayout>, rounded: Tensor, exact: Tensor) -> Self {
        Self { layout, flat: rounded, vectors: Some(exact) }
    }

    /// The parameters `entries[index]`, in its own shape. A view: in-place kernels write through it.
    ///
    /// # Errors
    /// If the buffer does not match the layout.
    pub fn view(&self, index: usize) -> Result<Tensor> {
        let entry = &self.layout.entries[index];
        let flat = match &self.vectors {
            Some(vectors) if entry.offset >= self.layout.decayed => vectors,
            _ => &self.flat,
        };
        flat.narrow(0, entry.offset, entry.spec.len())?.reshape(entry.spec.shape.as_slice())
    }

    /// The vector `entries[index]` that is added to a product: of the product's type on a GPU, where it is added in its epilogue.
    ///
    /// # Errors
    /// As `view`.
    pub fn bias(&self, index: usize) -> Result<Tensor> {
        let entry = &self.layout.entries[index];
        self.flat.narrow(0, entry.offset, entry.spec.len())
    }

    /// `count` matrices from `entries[first]` on, which lie next to each other and have the same columns, as one matrix.
    ///
    /// # Errors
    /// As `view`.
    pub fn stacked(&self, first: usize, count: usize) -> Result<Tensor> {
        let entries = &self.layout.entries[first..first + count];
        let columns = entries[0].spec.shape[1];
        let len: usize = entries.iter().map(|e| e.spec.len()).sum();
        self.flat.narrow(0, entries[0].offset, len)?.reshape((len / columns, columns))
    }
}
