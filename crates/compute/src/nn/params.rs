//! Parameters as views of one flat buffer.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};

use crate::kernels::storage;
use runner_spec::model::layout::ParamLayout;

/// A flat buffer of weights or gradients, and its layout.
#[derive(Debug, Clone)]
pub struct Params {
    pub layout: Arc<ParamLayout>,
    /// [layout.total]
    pub flat: Tensor,
    /// Where `flat` holds bf16 weights: gains and biases in f32, [layout.total − layout.decayed], for norms. A gain near 1 in bf16 would
    /// not change under many updates, and then jump.
    exact_vectors: Option<Tensor>,
}

impl Params {
    pub fn new(layout: Arc<ParamLayout>, flat: Tensor) -> Self {
        Self { layout, flat, exact_vectors: None }
    }

    /// The weights that a forward in bf16 reads: `all` itself where it is bf16, otherwise a copy. Norms read gains and biases in f32: those
    /// of an f32 `all`, or a copy of those of a bf16 one.
    ///
    /// # Errors
    /// If memory is short, or `all` is neither f32 nor bf16.
    pub fn rounded(layout: Arc<ParamLayout>, all: Tensor) -> Result<Self> {
        let vectors = vectors(&layout, &all)?;
        let (flat, exact) = match all.dtype() {
            DType::BF16 => (all, storage::converted(&vectors)?),
            _ => (storage::converted(&all)?, vectors),
        };
        Ok(Self { layout, flat, exact_vectors: Some(exact) })
    }

    /// Zeros for the weights of `layout`, which [`Self::store`] and other ranks are to write. They are of type `dtype`; where it is bf16,
    /// gains and biases are there in f32, too, as [`Self::rounded`] has them.
    ///
    /// # Errors
    /// If memory is short.
    pub fn zeroed(layout: Arc<ParamLayout>, dtype: DType, device: &Device) -> Result<Self> {
        let flat = Tensor::zeros(layout.total, dtype, device)?;
        let vectors = (dtype == DType::BF16).then(|| Tensor::zeros(layout.total - layout.decayed, DType::F32, device));
        Ok(Self { exact_vectors: vectors.transpose()?, layout, flat })
    }

    /// Overwrites the weights from element `start` on with `weights`, rounded where these are. `weights` is a different buffer.
    ///
    /// # Errors
    /// If they do not fit, or are of a type to which they cannot be converted.
    pub fn store(&self, start: usize, weights: &Tensor) -> Result<()> {
        let range = start..start + weights.elem_count();
        copy_into(&self.flat.narrow(0, start, range.len())?, weights)?;
        let Some((exact, vectors)) = self.exact_range(&range)? else { return Ok(()) };
        copy_into(&exact, &weights.narrow(0, vectors.start - start, vectors.len())?)
    }

    /// The weights of the elements `range` as ranks send them to each other: views, gains and biases as norms read them.
    ///
    /// # Errors
    /// If there are no such elements.
    pub fn sent(&self, range: &Range<usize>) -> Result<Vec<Tensor>> {
        let Some((exact, vectors)) = self.exact_range(range)? else {
            return Ok(vec![self.flat.narrow(0, range.start, range.len())?]);
        };
        let matrices = self.flat.narrow(0, range.start, vectors.start - range.start)?;
        Ok([matrices, exact].into_iter().filter(|tensor| tensor.elem_count() > 0).collect())
    }

    /// Rounds the gains and biases among the elements `range`, after [`Self::sent`] was overwritten.
    ///
    /// # Errors
    /// If there are no such elements.
    pub fn round_received(&self, range: &Range<usize>) -> Result<()> {
        let Some((exact, vectors)) = self.exact_range(range)? else { return Ok(()) };
        copy_into(&self.flat.narrow(0, vectors.start, vectors.len())?, &exact)
    }

    /// The f32 gains and biases among the elements `range`, and their elements; `None` if there are none.
    fn exact_range(&self, range: &Range<usize>) -> Result<Option<(Tensor, Range<usize>)>> {
        let vectors = range.start.max(self.layout.decayed)..range.end;
        let Some(exact) = self.exact_vectors.as_ref().filter(|_| !vectors.is_empty()) else { return Ok(None) };
        Ok(Some((exact.narrow(0, vectors.start - self.layout.decayed, vectors.len())?, vectors)))
    }

    /// Refreshes what [`Self::rounded`] copied from `all`.
    ///
    /// # Errors
    /// None on a CPU.
    pub fn refresh(&self, all: &Tensor) -> Result<()> {
        match &self.exact_vectors {
            Some(exact) if all.dtype() == DType::BF16 => storage::convert(exact, &vectors(&self.layout, all)?),
            Some(_) => storage::convert(&self.flat, all),
            None => Ok(()),
        }
    }

    /// The gains and biases that norms read, where they are apart from `flat`.
    pub fn exact_vectors(&self) -> Option<&Tensor> {
        self.exact_vectors.as_ref()
    }

    /// The type of activations that are computed from these weights.
    pub fn activation_dtype(&self) -> DType {
        self.flat.dtype()
    }

    /// The parameter `entries[index]`, in its own shape, for reading.
    ///
    /// # Errors
    /// If the buffer does not match the layout.
    pub fn parameter(&self, index: usize) -> Result<Tensor> {
        let entry = &self.layout.entries[index];
        match (&self.exact_vectors, entry.offset.checked_sub(self.layout.decayed)) {
            (Some(vectors), Some(start)) => {
                vectors.narrow(0, start, entry.spec.len())?.reshape(entry.spec.shape.as_slice())
            }
            _ => self.view(index, 1),
        }
    }

    /// Runs `add`, which adds to the gradients of `count` parameters from `entries[first]` on, as in [`Self::view`]. The tensor that `add`
    /// changes is that view, or an f32 copy of bf16 gradients, which is then rounded back: each
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

    /// `count` parameters from `entries[first]` on, as a view in the buffer's type. Several are matrices that lie next to each other and have
    /// the same columns; they are one matrix.
    ///
    /// # Errors
    /// If the buffer does not match the layout.
    pub fn view(&self, first: usize, count: usize) -> Result<Tensor> {
        let entries = &self.layout.entries[first..first + count];
        let len: usize = entries.iter().map(|e| e.spec.len()).sum();
        let view = self.flat.narrow(0, entries[0].offset, len)?;
        match entries {
            [one] => view.reshape(one.spec.shape.as_slice()),
            _ => view.reshape((len / entries[0].spec.shape[1], entries[0].spec.shape[1])),
        }
    }
}

/// Copies the numbers of `source` to `target`, which has the same length; f32 and bf16 are converted.
fn copy_into(target: &Tensor, source: &Tensor) -> Result<()> {
    if target.dtype() == source.dtype() { target.slice_set(source, 0, 0) } else { storage::convert(target, source) }
}

/// The gains and biases of the weights `all`, a view.
fn vectors(layout: &ParamLayout, all: &Tensor) -> Result<Tensor> {
    all.narrow(0, layout.decayed, layout.total - layout.decayed)
}

/// The index in `layout` of the parameter called `name`.
///
/// # Errors
/// If there is none.
pub(crate) fn parameter_index(layout: &ParamLayout, name: &str) -> Result<usize> {
    layout.index(name).map_err(candle_core::Error::wrap)
}
