//! The backward of a model or a chunk: in one pass, in segments (for gradient buckets), or split into the input's gradient
//! and the weights' (for zero-bubble schedules). All give the same bits.

use std::ops::Range;

use candle_core::{Result, bail};

use super::block::{Block, BlockActivations, SavedActivations};
use super::blocks::Model;
use crate::kernels::out_of_memory::with_computation;
use crate::kernels::{Gradient, pointwise};
use crate::nn::Params;
use crate::nn::{BackwardPass, Carried, DeferredGradients, GradientSink, MicroBatch, Stream};
use runner_spec::model::CarriedTensor;

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
        dy: Option<Stream>,
        mb: &MicroBatch,
        blocks: Range<usize>,
    ) -> Result<Option<Stream>> {
        self.check_last_blocks(&blocks, saved.len())?;
        let mut d = dy.map(StreamGradient::from);
        for (index, block) in blocks.clone().zip(self.blocks_in(&blocks)).rev() {
            let dx = self.backward_block(params, mb, GradientSink::Add(grads), (index, block), saved.pop(), d);
            d = dx.map_err(|e| with_computation(e, || format!("block {index}")))?.0;
        }
        Ok(d.map(Stream::from))
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
        dy: Option<Stream>,
        mb: &MicroBatch,
    ) -> Result<(Option<Stream>, Vec<DeferredGradients>)> {
        self.check_last_blocks(&self.range, saved.len())?;
        let (mut d, mut work) = (dy.map(StreamGradient::from), Vec::with_capacity(self.blocks.len()));
        for block in self.range.clone().zip(&self.blocks).rev() {
            let sink = GradientSink::Defer(Vec::new());
            let (dx, grads) = self.backward_block(params, mb, sink, block, saved.pop(), d)?;
            d = dx;
            work.push(grads.into_deferred());
        }
        work.reverse();
        Ok((d.map(Stream::from), work))
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

    /// Returns the gradient of what flows into the block, nothing for the embedding.
    fn backward_block<'a>(
        &self,
        params: &'a Params,
        mb: &'a MicroBatch,
        grads: GradientSink<'a>,
        (index, block): (usize, &Block),
        saved: Option<SavedActivations>,
        dy: Option<StreamGradient>,
    ) -> Result<(Option<StreamGradient>, GradientSink<'a>)> {
        let Some(SavedActivations { of, carried }) = saved else { bail!("a block without activations") };
        let (mut dy, carried_gradients) = dy.map_or((None, Vec::new()), |dy| (Some(dy.x), dy.carried));
        let mut pass = BackwardPass { params, mb, grads, carried, carried_gradients };
        if let Some(dy) = &mut dy {
            self.check_hidden(&dy.tensor, mb)?;
            self.add_gradient_of_output(index, dy, &mut pass.carried_gradients)?;
        }
        let x = match (block, of, dy) {
            (Block::Head(h), BlockActivations::Head(s), None) => Some(h.backward(&mut pass, s)?),
            (Block::Layer(l), BlockActivations::Layer(s), Some(dy)) => Some(l.backward(&mut pass, *s, &dy)?),
            (Block::Embedding(e), BlockActivations::Embedding, Some(dy)) => {
                e.backward(&mut pass, &dy)?;
                None
            }
            _ => bail!("a chunk was given a gradient or activations that do not fit its last block"),
        };
        let BackwardPass { grads, carried_gradients: carried, .. } = pass;
        Ok((x.map(|x| StreamGradient { x, carried }), grads))
    }

    /// Adds to `dy`, the gradient of the output of `block`, what later blocks that read the output gave back. The sum is in a buffer that no
    /// deferred task shares.
    fn add_gradient_of_output(&self, block: usize, dy: &mut Gradient, carried: &mut Carried) -> Result<()> {
        let is_output = |place: usize| {
            let of = &self.carried[place];
            of.from == block && of.of == CarriedTensor::Output
        };
        if let Some(index) = carried.iter().position(|(place, _)| is_output(*place)) {
            let (_, sum) = carried.remove(index);
            pointwise::add_assign(&sum, &dy.tensor)?;
            *dy = sum.into();
        }
        Ok(())
    }
}

/// The gradient of what flows from block to block.
struct StreamGradient {
    x: Gradient,
    carried: Carried,
}

impl From<Stream> for StreamGradient {
    fn from(Stream { x, carried }: Stream) -> Self {
        Self { x: x.into(), carried }
    }
}

impl From<StreamGradient> for Stream {
    fn from(StreamGradient { x, carried }: StreamGradient) -> Self {
        Self { x: x.tensor, carried }
    }
}
