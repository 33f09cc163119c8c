//! Tensors of an operation as one sequence of bytes.

use std::ops::Range;

use candle_core::Tensor;

use super::error::{CommError, ElementType, OperationKind};
use runner_compute::kernels::bytes;
use runner_spec::model::layout::common_range;

/// Tensors as one sequence of bytes.
pub struct Buffers<'a> {
    tensors: &'a [Tensor],
    pub element: ElementType,
    pub bytes: usize,
}

impl<'a> Buffers<'a> {
    /// The tensors of `operation`.
    ///
    /// # Errors
    /// If a tensor cannot be sent, the tensors differ in type, or the operation sums and they are not of f32, f64 or bf16. The error names
    /// `operation`.
    pub fn new(operation: OperationKind, tensors: &'a [Tensor]) -> Result<Self, CommError> {
        let refusal = |what: String| CommError::Request { operation, what };
        let mut element = None;
        for t in tensors {
            let this = ElementType::from_dtype(t.dtype()).ok_or_else(|| refusal(format!("no {:?}", t.dtype())))?;
            if *element.get_or_insert(this) != this {
                return Err(refusal(format!("tensors of {} and {this} at once", element.unwrap_or(this))));
            }
            if !t.device().is_cpu() || !t.is_contiguous() {
                let shape = t.dims();
                return Err(refusal(format!("a tensor of shape {shape:?} that is not contiguous on the CPU")));
            }
        }
        let element = element.unwrap_or(ElementType::Bytes);
        let sums = matches!(operation, OperationKind::AllReduce | OperationKind::Reduce);
        if sums && element == ElementType::U32 {
            return Err(refusal(format!("sums must be of f32, f64 or bf16, got {element}")));
        }
        Ok(Self { tensors, element, bytes: tensors.iter().map(byte_count).sum() })
    }

    /// The tensors that have bytes in `range`: the tensor, its bytes in `range`, and their offset from the start of `range`.
    pub(crate) fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (&'a Tensor, Range<usize>, usize)> {
        let mut start = 0;
        self.tensors.iter().filter_map(move |t| {
            let whole = start..start + byte_count(t);
            start = whole.end;
            let both = common_range(&whole, &range)?;
            Some((t, both.start - whole.start..both.end - whole.start, both.start - range.start))
        })
    }

    /// Copies the bytes of `range`.
    pub fn read(&self, range: Range<usize>) -> Result<Vec<u8>, CommError> {
        let mut out = Vec::with_capacity(range.len());
        for (tensor, own, _) in self.parts(range) {
            bytes::read(tensor, |from| out.extend_from_slice(&from[own]))?;
        }
        Ok(out)
    }

    /// Overwrites the bytes from `start` on with `from`.
    pub fn write(&self, start: usize, from: &[u8]) -> Result<(), CommError> {
        for (tensor, own, offset) in self.parts(start..start + from.len()) {
            bytes::write(tensor, |to| to[own.clone()].copy_from_slice(&from[offset..offset + own.len()]))?;
        }
        Ok(())
    }
}

fn byte_count(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}
