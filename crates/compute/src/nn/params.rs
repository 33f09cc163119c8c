//! Parameters as views of one flat buffer, parts of which may come and go.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::{DType, Device, Result, Tensor};

use crate::kernels::{optimizer, storage};
use runner_spec::model::layout::{ParamLayout, common_range, join_ranges};

/// A flat buffer of weights or gradients, and its layout.
#[derive(Debug, Clone)]
pub struct Params {
    pub layout: Arc<ParamLayout>,
    /// `[layout.total]`, or the elements after the pieces.
    pub flat: Tensor,
    /// The first elements, where they are held only while they are used.
    pieces: Vec<Piece>,
    /// Buffers of released pieces, for the next pieces of their lengths. An allocator would put other tensors there, and come to hold more.
    spare: Vec<Tensor>,
    /// Where `flat` holds bf16 weights: gains and biases in f32, `[layout.total − layout.matrices]`, for norms. A gain near 1 in bf16 would
    /// not change under many updates, and then jump.
    exact_vectors: Option<Tensor>,
    /// In a buffer of gradients, for each parameter: true if its gradient is the last step's, which the first product overwrites.
    outdated: Arc<[AtomicBool]>,
}

/// Consecutive elements of the buffer that come and go together.
#[derive(Debug, Clone)]
struct Piece {
    range: Range<usize>,
    tensor: Option<Tensor>,
}

impl Params {
    pub fn new(layout: Arc<ParamLayout>, flat: Tensor) -> Self {
        Self::in_pieces(layout, flat, Vec::new())
    }

    /// Parameters of which `flat` holds the last. The others are `pieces`, of whole parameters and in the order of the buffer, which are not
    /// there yet.
    pub fn in_pieces(layout: Arc<ParamLayout>, flat: Tensor, pieces: Vec<Range<usize>>) -> Self {
        let pieces = pieces.into_iter().map(|range| Piece { range, tensor: None }).collect();
        let outdated = layout.entries.iter().map(|_| AtomicBool::new(false)).collect();
        Self { layout, flat, pieces, spare: Vec::new(), exact_vectors: None, outdated }
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
        Ok(Self { exact_vectors: Some(exact), ..Self::new(layout, flat) })
    }

    /// Zeros of the type of `like`, on its device.
    ///
    /// # Errors
    /// If memory is short.
    pub fn zeroed_like(layout: Arc<ParamLayout>, like: &Tensor) -> Result<Self> {
        let flat = storage::zeros(layout.total, like.dtype(), like.device())?;
        Ok(Self::new(layout, flat))
    }

    /// Zeros for the weights of `layout`, which [`Self::store`] and other ranks are to write; those of `pieces` of matrices are not there yet.
    /// They are of type `dtype`; where it is bf16, gains and biases are there in f32, too, as [`Self::rounded`] has them.
    ///
    /// # Errors
    /// If memory is short.
    pub fn zeroed(layout: Arc<ParamLayout>, dtype: DType, device: &Device, pieces: Vec<Range<usize>>) -> Result<Self> {
        let start = pieces.last().map_or(0, |last| last.end);
        let flat = storage::zeros(layout.total - start, dtype, device)?;
        let vectors =
            (dtype == DType::BF16).then(|| storage::zeros(layout.total - layout.matrices, DType::F32, device));
        Ok(Self { exact_vectors: vectors.transpose()?, ..Self::in_pieces(layout, flat, pieces) })
    }

    /// The first element that `flat` holds.
    fn flat_start(&self) -> usize {
        self.pieces.last().map_or(0, |last| last.range.end)
    }

    /// The elements `range`, a view.
    ///
    /// # Errors
    /// If they are not there, or not in one buffer.
    pub fn narrow(&self, range: &Range<usize>) -> Result<Tensor> {
        let start = self.flat_start();
        if range.start >= start {
            return self.flat.narrow(0, range.start - start, range.len());
        }
        match self.pieces.iter().find(|piece| piece.range.contains(&range.start)) {
            Some(Piece { range: held, tensor: Some(tensor) }) => {
                tensor.narrow(0, range.start - held.start, range.len())
            }
            _ => candle_core::bail!("parameters {range:?} of {} are not there", self.layout.total),
        }
    }

    /// True if there are pieces.
    pub fn has_temporary_pieces(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Brings the pieces with elements of `ranges`, as zeros. Those that are there stay as they are.
    ///
    /// # Errors
    /// If memory is short.
    pub fn hold(&mut self, ranges: &[Range<usize>]) -> Result<()> {
        for piece in &mut self.pieces {
            let is_wanted = ranges.iter().any(|range| common_range(range, &piece.range).is_some());
            if is_wanted && piece.tensor.is_none() {
                let length = piece.range.len();
                piece.tensor = Some(match self.spare.iter().position(|spare| spare.elem_count() == length) {
                    Some(index) => {
                        let spare = self.spare.swap_remove(index);
                        optimizer::clear(&spare)?;
                        spare
                    }
                    None => storage::zeros(length, self.flat.dtype(), self.flat.device())?,
                });
            }
        }
        Ok(())
    }

    /// Gives up the pieces with elements of `ranges`. Their buffers stay for others, until [`Self::free_spare`].
    pub fn release(&mut self, ranges: &[Range<usize>]) {
        for piece in &mut self.pieces {
            if ranges.iter().any(|range| common_range(range, &piece.range).is_some()) {
                self.spare.extend(piece.tensor.take());
            }
        }
    }

    /// Frees the buffers of released pieces.
    pub fn free_spare(&mut self) {
        self.spare.clear();
    }

    /// Clears the gradients in `flat`. The gradients of the parameters `matrices` stay as they are until the first product overwrites them: it then
    /// need not read them, and nothing writes zeros.
    ///
    /// # Errors
    /// None on a CPU.
    pub fn clear(&self, matrices: &[usize]) -> Result<()> {
        let entries = &self.layout.entries;
        for &index in matrices {
            self.outdated[index].store(true, Ordering::Relaxed);
        }
        let rest = (0..entries.len()).filter(|index| !matrices.contains(index)).map(|index| entries[index].range());
        let start = self.flat_start();
        join_ranges(rest.filter(|range| range.start >= start))
            .iter()
            .try_for_each(|range| optimizer::clear(&self.narrow(range)?))
    }

    /// # Errors
    /// If no product has overwritten the gradients of a parameter since [`Self::clear`].
    pub fn ensure_written(&self) -> Result<()> {
        match self.outdated.iter().position(|outdated| outdated.load(Ordering::Relaxed)) {
            Some(index) => candle_core::bail!("{} got no gradient", self.layout.entries[index].spec.name),
            None => Ok(()),
        }
    }

    /// True if the caller is to overwrite the gradients of `count` parameters from `entries[first]` on, which count from here on.
    pub(super) fn take_outdated(&self, first: usize, count: usize) -> bool {
        self.outdated[first..first + count].iter().fold(false, |any, one| any | one.swap(false, Ordering::Relaxed))
    }

    /// Frees all pieces.
    pub fn free_pieces(&mut self) {
        self.pieces.iter_mut().for_each(|piece| piece.tensor = None);
        self.free_spare();
    }

    /// The number of elements in buffers.
    pub fn held(&self) -> usize {
        let pieces = self.pieces.iter().filter_map(|piece| piece.tensor.as_ref());
        [&self.flat].into_iter().chain(pieces).chain(&self.spare).map(Tensor::elem_count).sum()
    }

    /// `range` in parts that are each in one buffer: its pieces hold matrices, and `flat` the rest.
    fn parts(&self, range: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let cut = self.flat_start().clamp(range.start, range.end);
        [range.start..cut, cut..range.end].into_iter().filter(|part| !part.is_empty())
    }

    /// Overwrites the weights from element `start` on with `weights`, rounded where these are. `weights` is a different buffer.
    ///
    /// # Errors
    /// If they do not fit, or are of a type to which they cannot be converted.
    pub fn store(&self, start: usize, weights: &Tensor) -> Result<()> {
        let range = start..start + weights.elem_count();
        for part in self.parts(&range) {
            storage::copy(&self.narrow(&part)?, &weights.narrow(0, part.start - start, part.len())?)?;
        }
        let Some((exact, vectors)) = self.exact_range(&range)? else { return Ok(()) };
        storage::copy(&exact, &weights.narrow(0, vectors.start - start, vectors.len())?)
    }

    /// The weights of the elements `range` as ranks send them to each other: views, gains and biases as norms read them.
    ///
    /// # Errors
    /// If there are no such elements.
    pub fn sent(&self, range: &Range<usize>) -> Result<Vec<Tensor>> {
        let Some((exact, vectors)) = self.exact_range(range)? else {
            return self.parts(range).map(|part| self.narrow(&part)).collect();
        };
        let matrices = range.start..vectors.start;
        let matrices = if matrices.is_empty() { None } else { Some(self.narrow(&matrices)?) };
        Ok(matrices.into_iter().chain([exact]).collect())
    }

    /// Rounds the gains and biases among the elements `range`, after [`Self::sent`] was overwritten.
    ///
    /// # Errors
    /// If there are no such elements.
    pub fn round_received(&self, range: &Range<usize>) -> Result<()> {
        let Some((exact, vectors)) = self.exact_range(range)? else { return Ok(()) };
        storage::copy(&self.narrow(&vectors)?, &exact)
    }

    /// The f32 gains and biases among the elements `range`, and their elements; `None` if there are none.
    fn exact_range(&self, range: &Range<usize>) -> Result<Option<(Tensor, Range<usize>)>> {
        let vectors = range.start.max(self.layout.matrices)..range.end;
        let Some(exact) = self.exact_vectors.as_ref().filter(|_| !vectors.is_empty()) else { return Ok(None) };
        Ok(Some((exact.narrow(0, vectors.start - self.layout.matrices, vectors.len())?, vectors)))
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
        match (&self.exact_vectors, entry.offset.checked_sub(self.layout.matrices)) {
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

    /// `count` parameters from `entries[first]` on, as a view in the buffer's type. Several are vectors or
    /// matrices that lie next to each other and have the same columns; they are one vector or matrix.
    ///
    /// # Errors
    /// If the buffer does not match the layout.
    pub fn view(&self, first: usize, count: usize) -> Result<Tensor> {
        let entries = &self.layout.entries[first..first + count];
        let len: usize = entries.iter().map(|e| e.spec.len()).sum();
        let view = self.narrow(&(entries[0].offset..entries[0].offset + len))?;
        match entries {
            [one] => view.reshape(one.spec.shape.as_slice()),
            [first, ..] if !first.spec.is_matrix() => Ok(view),
            _ => view.reshape((len / entries[0].spec.shape[1], entries[0].spec.shape[1])),
        }
    }
}

/// The gains and biases of the weights `all`, a view.
fn vectors(layout: &ParamLayout, all: &Tensor) -> Result<Tensor> {
    all.narrow(0, layout.matrices, layout.total - layout.matrices)
}

/// The index in `layout` of the parameter called `name`.
///
/// # Errors
/// If there is none.
pub(crate) fn parameter_index(layout: &ParamLayout, name: &str) -> Result<usize> {
    layout.index(name).ok_or_else(|| candle_core::Error::msg(format!("the layout has no parameter {name}")))
}
