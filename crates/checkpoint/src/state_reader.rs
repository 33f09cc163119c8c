//! A training state as its checkpoint holds it: bytes, without tensors.

use std::ops::Range;

use super::header::NumberType;
use crate::error::RecordError;
use runner_spec::event::BestValidation;
use runner_spec::model::layout::ParamLayout;

/// Bytes that are read or written at a time: a multiple of four, so that no number is cut; enough for the threads that hash them, and few
/// enough to stay in the third-level cache between their hashes and the write.
pub(super) const CHUNK_BYTES: usize = 1 << 22;

/// Receives bytes, piece by piece.
pub type ByteSink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), RecordError>;

/// Gives the elements of a range of a section of a state to a sink, little-endian.
type ReadNumbers<'a> = Box<dyn Fn(usize, Range<usize>, ByteSink<'_>) -> Result<(), RecordError> + 'a>;

/// A training state whose numbers are read when they are needed.
pub struct StateReader<'a> {
    /// Optimizer steps done.
    pub step: u64,
    /// Valid tokens seen.
    pub tokens: u64,
    pub best: Option<BestValidation>,
    pub layout: &'a ParamLayout,
    /// The number of optimizer moments.
    pub moments: usize,
    pub number_type: NumberType,
    /// Gives the elements of a range of a section to a sink, little-endian: section 0 is the weights, each following one a moment, laid
    /// out by `layout`, whose first `one_moment` elements have no second moment.
    pub read: ReadNumbers<'a>,
}

/// Gives `bytes` to `sink` in pieces that stay in the third-level cache between their hashes and their write.
///
/// # Errors
/// Those of `sink`.
pub fn send_chunks(bytes: &[u8], sink: ByteSink<'_>) -> Result<(), RecordError> {
    bytes.chunks(CHUNK_BYTES).try_for_each(sink)
}
