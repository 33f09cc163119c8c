//! What a step holds of its micro-batches between instructions.

use candle_core::Tensor;

use super::error::ExecError;
use runner_comm::Pending;
use runner_compute::kernels::optimizer::Sum;
use runner_compute::model::{Saved, WeightWork};
use runner_compute::nn::MicroBatch;
use runner_spec::data::Rows;

/// One micro-batch on one chunk.
#[derive(Debug, Default)]
pub(super) struct Cell {
    /// From the chunk before, until the forward.
    pub input: Option<Tensor>,
    /// From the forward, until it is sent.
    pub output: Option<Tensor>,
    pub saved: Option<Vec<Saved>>,
    /// The gradient as far as the backward has come: received, passed from block to block, sent.
    pub gradient: Option<Tensor>,
    pub work: Option<Vec<WeightWork>>,
}

/// All of a step.
#[derive(Debug, Default)]
pub(super) struct Cells {
    /// Rows that were read, until the first forward.
    pub rows: Vec<Option<Rows>>,
    pub batches: Vec<Option<MicroBatch>>,
    by_chunk: Vec<Vec<Cell>>,
    pub pending: Vec<Pending>,
    /// Summed losses of micro-batches that a GPU may not have come to.
    pub unread: Vec<(usize, Sum)>,
}

impl Cells {
    pub(super) fn new(chunks: usize, micro_batches: usize) -> Self {
        fn empty<T: Default>(n: usize) -> Vec<T> {
            std::iter::repeat_with(T::default).take(n).collect()
        }
        Self {
            rows: empty(micro_batches),
            batches: empty(micro_batches),
            by_chunk: std::iter::repeat_with(|| empty(micro_batches)).take(chunks).collect(),
            pending: Vec::new(),
            unread: Vec::new(),
        }
    }

    pub(super) fn cell(&mut self, mb: usize, chunk: usize) -> &mut Cell {
        &mut self.by_chunk[chunk][mb]
    }

    /// The micro-batch, once it has been forwarded anywhere.
    pub(super) fn batch(&self, mb: usize) -> Result<&MicroBatch, ExecError> {
        let batch = self.batches[mb].as_ref();
        batch.ok_or_else(|| ExecError::Program(format!("micro-batch {mb} has not been forwarded")))
    }
}
