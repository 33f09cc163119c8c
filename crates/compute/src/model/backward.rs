//! The backward of a model or a chunk: in one pass, in segments (for gradient buckets), or split into the input's gradient
//! and the weights' (for zero-bubble schedules). All give the same bits.

use std::ops::Range;

use candle_core::{Result, Tensor, bail};

use super::block::{Block, SavedActivations};
use super::blocks::Model;
use crate::kernels::Gradient;
use crate::kernels::out_of_memory::with_computation;
use crate::nn::Params;
use crate::nn::{BackwardPass, DeferredGradients, GradientSink, MicroBatch};

impl Model {
    /// Adds the weight gradients of `blocks` (indexes in the whole model's list), last block first. They are the last that `saved` still
    /// holds; takes them from it, and frees them on the way. `dy` is the gradient that the blocks after them returned, nothing for the
    /// head. Returns the gradient for the blocks before them.
    ///
    /// # Errors
    /// If `saved` or `dy` is not of this chunk, or blocks after these are still to be done.
    pub fn backward_blocks(
        &self,
        params: &Params,
        grads: &Params,
        saved: &mut Vec<SavedActivations>,
        dy: Option<Tensor>,
        mb: &MicroBatch,
        blocks: Range<usize>,
    ) -> Result<Option<Tensor>> {
        self.check_last_blocks(&blocks, saved.len())?;
        let mut d = dy.map(Gradient::from);
        for (index, block) in blocks.clone().zip(self.blocks_in(&blocks)).rev() {
            let dx = self.backward_block(
                &mut BackwardPass { params, mb, grads: GradientSink::Add(grads) },
                block,
                saved.pop(),
                d,
            );
            d = dx.map_err(|e| with_computation(e, || format!("block {index}")))?;
        }
        Ok(d.map(|gradient| gradient.tensor))
    }

    /// Returns the input's gradient, and the deferred weight gradients of each block, in the order of the blocks. Frees the activations
    /// that the weights do not need. The tasks share `dy`'s buffer, which must not be written to before they have run.
    ///
    /// # Errors
    /// If `saved` or `dy` is not of this chunk.
    pub fn backward_input(
        &self,
        params: &Params,
        mut saved: Vec<SavedActivations>,
        dy: Option<Tensor>,
        mb: &MicroBatch,
    ) -> Result<(Option<Tensor>, Vec<DeferredGradients>)> {
        self.check_last_blocks(&self.range, saved.len())?;
        let (mut d, mut work) = (dy.map(Gradient::from), Vec::with_capacity(self.blocks.len()));
        for block in self.blocks.iter().rev() {
            let mut pass = BackwardPass { params, mb, grads: GradientSink::Defer(Vec::new()) };
            d = self.backward_block(&mut pass, block, saved.pop(), d)?;
            work.push(pass.grads.into_deferred());
        }
        work.reverse();
        Ok((d.map(|gradient| gradient.tensor), work))
    }

    /// Adds the weight gradients of `blocks` (indexes in the whole model's list), last block first. They are the last that
    /// `work` still holds; takes them from it.
    ///
    /// # Errors
    /// If blocks after these are still to be done.
    pub fn backward_weight(
        &self,
        grads: &Params,
        work: &mut Vec<DeferredGradients>,
        blocks: Range<usize>,
    ) -> Result<()> {
        self.check_last_blocks(&blocks, work.len())?;
        work.drain(work.len() - blocks.len()..).rev().flatten().try_for_each(|task| task.run(grads))
    }

    /// Checks that `blocks` are the last of the chunk's first `left` blocks, which are still to be done.
    fn check_last_blocks(&self, blocks: &Range<usize>, left: usize) -> Result<()> {
        let Range { start, end } = self.range;
        if left > end - start || blocks.start < start || blocks.start > blocks.end || blocks.end != start + left {
            bail!("backward of blocks {blocks:?}, but {:?} of the chunk {:?} are left", start..start + left, self.range)
        }
        Ok(())
    }

    fn backward_block(
        &self,
        pass: &mut BackwardPass<'_>,
        block: &Block,
        saved: Option<SavedActivations>,
        dy: Option<Gradient>,
    ) -> Result<Option<Gradient>> {
        if let Some(dy) = &dy {
            self.check_hidden(&dy.tensor, pass.mb)?;
        }
        Ok(match (block, saved, dy) {
            (Block::Head(h), Some(SavedActivations::Head(s)), None) => Some(h.backward(pass, s)?),
            (Block::Layer(l), Some(SavedActivations::Layer(s)), Some(dy)) => Some(l.backward(pass, *s, &dy)?),
            (Block::Embedding(e), Some(SavedActivations::Embedding), Some(dy)) => {
                e.backward(pass, &dy)?;
                None
            }
            _ => bail!("a chunk was given a gradient or activations that do not fit its last block"),
        })
    }
}
