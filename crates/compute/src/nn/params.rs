//! Parameters as views of one flat buffer.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use runner_spec::model::layout::ParamLayout;

/// A flat buffer of weights or gradients, and its layout.
#[derive(Debug, Clone)]
pub struct Params {
    pub layout: Arc<ParamLayout>,
    /// [layout.total]
    pub flat: Tensor,
    /// In a bf16 run on a GPU, where `flat` is a bf16 tensor: the f32 buffer, [layout.total], from which norms read gains and biases.
    exact_vectors: Option<Tensor>,
}

impl Params {
    pub fn new(layout: Arc<ParamLayout>, flat: Tensor) -> Self {
        Self { layout, flat, exact_vectors: None }
    }

    /// Two buffers, both [layout.total]: matrix products read `rounded`, norms read their gains and biases from `exact`.
    pub fn with_exact_vectors(layout: Arc<ParamLayout>, rounded: Tensor, exact: Tensor) -> Self {
        Self { layout, flat: rounded, exact_vectors: Some(exact) }
    }

    /// The parameter `entries[index]`, in its own shape. A view: in-place kernels write through it.
    ///
    /// # Errors
    /// If the buffer does not match the layout.
    pub fn parameter(&self, index: usize) -> Result<Tensor> {
        let entry = &self.layout.entries[index];
        let flat = match &self.exact_vectors {
            Some(vectors) if entry.offset >= self.layout.decayed => vectors,
            _ => &self.flat,
        };
        flat.narrow(0, entry.offset, entry.spec.len())?.reshape(entry.spec.shape.as_slice())
    }

    /// The bias `entries[index]` of a matrix product. On a GPU it has the product's type, since the product's epilogue adds it.
    ///
    /// # Errors
    /// If the buffer does not match the layout.
    pub fn bias(&self, index: usize) -> Result<Tensor> {
        let entry = &self.layout.entries[index];
        self.flat.narrow(0, entry.offset, entry.spec.len())
    }

    /// `count` matrices from `entries[first]` on, which lie next to each other and have the same columns, as one matrix.
    ///
    /// # Errors
    /// If the buffer does not match the layout.
    pub fn stacked(&self, first: usize, count: usize) -> Result<Tensor> {
        let entries = &self.layout.entries[first..first + count];
        let columns = entries[0].spec.shape[1];
        let len: usize = entries.iter().map(|e| e.spec.len()).sum();
        self.flat.narrow(0, entries[0].offset, len)?.reshape((len / columns, columns))
    }
}

/// The index in `layout` of the parameter called `name`.
///
/// # Errors
/// If there is none.
pub(crate) fn parameter_index(layout: &ParamLayout, name: &str) -> Result<usize> {
    layout.index(name).map_err(candle_core::Error::wrap)
}
