//! The backward of a model or a chunk: in one pass, in segments (for gradient buckets), or split into the input's gradient
//! and the weights' (for zero-bubble schedules). All give the same bits.

use std::ops::Range;

use candle_core::{Result, Tensor, bail};

use super::blocks::{Block, Model, Saved};
use super::params::Params;
use crate::kernels::out_of_memory::within;
use crate::nn::{GradSink, MicroBatch, WeightTask};

/// The weight gradients of one block that are still to be added, with what they need: of a layer the inputs of its four
/// linear layers and the gradients of their outputs, of the head the logits' gradient and the projection's input, of the
/// embedding the gradient of its output, of norms their own gradients.
#[derive(Debug)]
pub struct WeightWork {
    tasks: Vec<WeightTask>,
}

impl Model {
    /// Adds weight gradients of what `forward` saved, last block first; activations are freed on the way. `dy` is the next
    /// chunk's gradient, nothing for the last chunk. Returns the gradient for the previous chunk.
    ///
    /// # Errors
    /// If `saved` or `dy` is not of this chunk.
    pub fn backward(
        &self,
        params: &Params,
        grads: &Params,
        mut saved: Vec<Saved>,
        dy: Option<Tensor>,
        mb: &MicroBatch,
    ) -> Result<Option<Tensor>> {
        self.backward_blocks(params, grads, &mut saved, dy, mb, self.range.clone())
    }

    /// `backward` of the blocks `blocks` alone (indexes in the whole model's list), which are the last that `saved` still
    /// holds; takes them from it. `dy` is what the blocks behind them returned.
    ///
    /// # Errors
    /// As `backward`, and if it is not these blocks' turn.
    pub fn backward_blocks(
        &self,
        params: &Params,
        grads: &Params,
        saved: &mut Vec<Saved>,
        dy: Option<Tensor>,
        mb: &MicroBatch,
        blocks: Range<usize>,
    ) -> Result<Option<Tensor>> {
        self.check_turn(&blocks, saved.len())?;
        let mut d = dy;
        for (index, block) in blocks.clone().zip(self.held(&blocks)).rev() {
            let done = self.block(params, &mut GradSink::Now(grads), block, saved.pop(), d, mb);
            d = done.map_err(|e| within(e, || format!("block {index}")))?;
        }
        Ok(d)
    }

    /// The input's gradient alone, and what is left to do for each block's weights, in the order of the blocks. Frees what
    /// the weights do not need. The work shares `dy`'s buffer, which must not be written to before it is done.
    ///
    /// # Errors
    /// As `backward`.
    pub fn backward_input(
        &self,
        params: &Params,
        mut saved: Vec<Saved>,
        dy: Option<Tensor>,
        mb: &MicroBatch,
    ) -> Result<(Option<Tensor>, Vec<WeightWork>)> {
        self.check_turn(&self.range, saved.len())?;
        let (mut d, mut work) = (dy, Vec::with_capacity(self.blocks.len()));
        for block in self.blocks.iter().rev() {
            let mut tasks = Vec::new();
            d = self.block(params, &mut GradSink::Later(&mut tasks), block, saved.pop(), d, mb)?;
            work.push(WeightWork { tasks });
        }
        work.reverse();
        Ok((d, work))
    }

    /// Adds the weight gradients of `blocks` (indexes in the whole model's list), last block first. They are the last that
    /// `work` still holds; takes them from it.
    ///
    /// # Errors
    /// If it is not these blocks' turn.
    pub fn backward_weight(
        &self,
        grads: &Params,
        work: &mut Vec<WeightWork>,
        mb: &MicroBatch,
        blocks: Range<usize>,
    ) -> Result<()> {
        self.check_turn(&blocks, work.len())?;
        for work in work.drain(work.len() - blocks.len()..).rev() {
            for task in work.tasks {
                task.run(grads, mb)?;
            }
        }
        Ok(())
    }

    /// Whether `blocks` are the last of the chunk's first `left` blocks.
    fn check_turn(&self, blocks: &Range<usize>, left: usize) -> Result<()> {
        let Range { start, end } = self.range;
        if left > end - start || blocks.start < start || blocks.start > blocks.end || blocks.end != start + left {
            bail!("backward of blocks {blocks:?}, but {:?} of the chunk {:?} are left", start..start + left, self.range)
        }
        Ok(())
    }

    fn block(
        &self,
        params: &Params,
        grads: &mut GradSink<'_>,
        block: &Block,
        saved: Option<Saved>,
        dy: Option<Tensor>,
        mb: &MicroBatch,
    ) -> Result<Option<Tensor>> {
        if let Some(dy) = &dy {
            self.check_hidden(dy, mb)?;
        }
        Ok(match (block, saved, dy) {
            (Block::Head(h), Some(Saved::Head(s)), None) => Some(h.backward(params, grads, s, mb.math)?),
            (Block::Layer(l), Some(Saved::Layer(s)), Some(dy)) => Some(l.backward(params, grads, *s, &dy, mb)?),
            (Block::Embedding(e), Some(Saved::Embedding), Some(dy)) => {
                e.backward(grads, &dy, mb)?;
                None
            }
            _ => bail!("a chunk was given a gradient or activations that do not fit its last block"),
        })
    }
}
