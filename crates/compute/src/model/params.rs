//! A flat buffer of parameters, seen through its layout.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use runner_spec::model::layout::ParamLayout;

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
/// The index in `layout` of the parameter called `name`.
///
/// # Errors
/// If there is none.
pub(super) fn find_index(layout: &ParamLayout, name: &str) -> Result<usize> {
    layout.index(name).map_err(candle_core::Error::wrap)
}
