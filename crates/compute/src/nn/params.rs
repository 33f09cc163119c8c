//! Parameters as views of one flat buffer.

use std::sync::Arc;

use candle_core::{DType, Result, Tensor};

use crate::kernels::{activation_dtype, storage};
use runner_spec::model::layout::ParamLayout;

/// A flat buffer of weights or gradients, and its layout.
///
/// A CPU has no bf16 kernels: there, reading weights from a bf16 buffer makes an f32 copy, which the caller should drop soon.
#[derive(Debug, Clone)]
pub struct Params {
    pub layout: Arc<ParamLayout>,
    /// [layout.total]
    pub flat: Tensor,
    /// In a bf16 run on a GPU, where `flat` is a bf16 tensor: gains and biases in f32, [layout.total − layout.decayed], for norms.
    exact_vectors: Option<Tensor>,
}

impl Params {
    pub fn new(layout: Arc<ParamLayout>, flat: Tensor) -> Self {
        Self { layout, flat, exact_vectors: None }
    }

    /// Two buffers: matrix products read `rounded`, [layout.total], norms read their gains and biases from `exact`, which has the
    /// parameters behind the decayed ones, [layout.total − layout.decayed].
    pub fn with_exact_vectors(layout: Arc<ParamLayout>, rounded: Tensor, exact: Tensor) -> Self {
        Self { layout, flat: rounded, exact_vectors: Some(exact) }
    }

    /// The gains and biases that norms read, where they are apart from `flat`.
    pub fn exact_vectors(&self) -> Option<&Tensor> {
        self.exact_vectors.as_ref()
    }

    /// The type of activations that are computed from these weights.
    pub fn activation_dtype(&self) -> DType {
        activation_dtype(&self.flat)
    }

    /// The parameter `entries[index]`, in its own shape, for reading.
    ///
    /// # Errors
    /// If the buffer does not match the layout, or memory is short.
    pub fn parameter(&self, index: usize) -> Result<Tensor> {
        let entry = &self.layout.entries[index];
        match (&self.exact_vectors, entry.offset.checked_sub(self.layout.decayed)) {
            (Some(vectors), Some(start)) => {
                vectors.narrow(0, start, entry.spec.len())?.reshape(entry.spec.shape.as_slice())
            }
            _ => readable(self.view(index, 1)?),
        }
    }

    /// The bias `entries[index]` of a matrix product, for reading. On a GPU it has the product's type, since the product's epilogue adds
    /// it.
    ///
    /// # Errors
    /// If the buffer does not match the layout, or memory is short.
    pub fn bias(&self, index: usize) -> Result<Tensor> {
        readable(self.view(index, 1)?)
    }

    /// `count` matrices from `entries[first]` on, which lie next to each other and have the same columns, as one matrix, for reading.
    ///
    /// # Errors
    /// If the buffer does not match the layout, or memory is short.
    pub fn stacked(&self, first: usize, count: usize) -> Result<Tensor> {
        readable(self.view(first, count)?)
    }

    /// Runs `add`, which adds to the gradients of `count` parameters from `entries[first]` on; several are matrices that lie next to each
    /// other, as one matrix. The tensor that `add` changes is a view, or an f32 copy of bf16 gradients, which is then rounded back: each
    /// sum that is added is rounded once.
    ///
    /// # Errors
    /// Those of `add`; if the buffer does not match the layout, or memory is short.
    pub fn accumulate<R>(&self, first: usize, count: usize, add: impl FnOnce(&Tensor) -> Result<R>) -> Result<R> {
        let stored = self.view(first, count)?;
        if stored.dtype() != DType::BF16 {
            return add(&stored);
        }
        let sum = storage::converted(&stored)?;
        let result = add(&sum)?;
        storage::convert(&stored, &sum)?;
        Ok(result)
    }

    /// The parameters that [`Self::accumulate`] describes, as a view.
    fn view(&self, first: usize, count: usize) -> Result<Tensor> {
        let entries = &self.layout.entries[first..first + count];
        let len: usize = entries.iter().map(|e| e.spec.len()).sum();
        let view = self.flat.narrow(0, entries[0].offset, len)?;
        match entries {
            [one] => view.reshape(one.spec.shape.as_slice()),
            _ => view.reshape((len / entries[0].spec.shape[1], entries[0].spec.shape[1])),
        }
    }
}

/// `view`, or its f32 copy where the device's kernels do not read bf16.
fn readable(view: Tensor) -> Result<Tensor> {
    if view.dtype() == activation_dtype(&view) { Ok(view) } else { storage::converted(&view) }
}

/// The index in `layout` of the parameter called `name`.
///
/// # Errors
/// If there is none.
pub(crate) fn parameter_index(layout: &ParamLayout, name: &str) -> Result<usize> {
    layout.index(name).map_err(candle_core::Error::wrap)
}
