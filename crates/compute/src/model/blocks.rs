//! A model, or a chunk of one, as a list of blocks: embedding, layers, head. A chunk is a contiguous range of the list; a
//! pipeline's rank holds one or several, over one layout.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Result, Tensor, bail};

use super::params::Params;
use super::{gpt2, llama};
use crate::kernels::loss::Losses;
use crate::kernels::optimizer::all_finite;
use crate::kernels::out_of_memory::within;
use crate::kernels::{Math, on_host};
use crate::nn::{Embedding, Head, MicroBatch, TransformerLayer, head, transformer};
use runner_spec::experiment::Family;
use runner_spec::experiment::Recompute;
use runner_spec::model::ModelSpec;
use runner_spec::model::layout::ParamLayout;

/// One entry of the block list.
#[derive(Debug, Clone)]
pub enum Block {
    Embedding(Embedding),
    Layer(Box<TransformerLayer>),
    Head(Head),
}

/// What one block's backward needs.
#[derive(Debug)]
pub enum Saved {
    Embedding,
    Layer(Box<transformer::Saved>),
    Head(head::Saved),
}

/// Is shown the output of a block, and the block's index.
pub type Seen<'a> = &'a mut dyn FnMut(usize, &Tensor) -> Result<()>;

/// What comes out of the last block of a chunk.
#[derive(Debug)]
pub enum Output {
    /// [batch·seq, d_model], for the next chunk.
    Hidden(Tensor),
    /// Per token, in nats, 0 where ignored.
    Losses(Vec<f32>),
    /// The same, [batch·seq], still on a GPU.
    Unread(Tensor),
}

/// Blocks `range` of a model's list. It knows the places of its parameters, not their values.
#[derive(Debug)]
pub struct Model {
    pub spec: ModelSpec,
    pub layout: Arc<ParamLayout>,
    /// The chunk, within the whole model's list.
    pub range: Range<usize>,
    pub(super) blocks: Vec<Block>,
    math: Math,
    device: Device,
}

impl Model {
    /// The blocks `range` of `spec`'s list, with parameters laid out as in `layout`, which may hold those of other blocks
    /// too. `like` gives element type and device.
    ///
    /// # Errors
    /// If `range` is empty or beyond the list, or `layout` lacks a parameter.
    pub fn new(
        spec: &ModelSpec,
        layout: Arc<ParamLayout>,
        range: Range<usize>,
        seed: u64,
        math: Math,
        like: &Tensor,
    ) -> Result<Self> {
        if range.is_empty() || range.end > spec.block_count() {
            bail!("{range:?} is no chunk of {} blocks", spec.block_count())
        }
        let blocks = match spec.family {
            Family::Gpt2 => gpt2::blocks(spec, &layout, range.clone(), seed, like)?,
            Family::Llama => llama::blocks(spec, &layout, range.clone(), seed, like)?,
        };
        Ok(Self { spec: spec.clone(), layout, range, blocks, math, device: like.device().clone() })
    }

    /// The same, whose layers compute again in the backward what `recompute` says.
    #[must_use]
    pub fn recomputing(mut self, recompute: Recompute) -> Self {
        for block in &mut self.blocks {
            if let Block::Layer(layer) = block {
                layer.recompute = recompute;
            }
        }
        self
    }

    /// A micro-batch of `inputs` (row after row of `seq` ids) on this model's terms, with targets.
    pub fn micro_batch(&self, inputs: &[u32], targets: Vec<u32>, seq: usize) -> Result<MicroBatch> {
        if seq == 0 || !inputs.len().is_multiple_of(seq) {
            bail!("{} ids are no rows of {seq}", inputs.len())
        }
        let (ids, targets_there) = self.there(inputs, &targets)?;
        Ok(MicroBatch {
            ids,
            targets,
            targets_there,
            batch: inputs.len() / seq,
            seq,
            filled: None,
            step: 0,
            first_sample: 0,
            sample_stride: 1,
            scale: 1.0,
            training: false,
            math: self.math,
        })
    }

    /// Ids and targets on the model's device. A GPU's kernels take ids at their word.
    #[cfg(feature = "cuda")]
    fn there(&self, inputs: &[u32], targets: &[u32]) -> Result<(Tensor, Option<Tensor>)> {
        if self.device.is_cpu() {
            return Ok((Tensor::from_slice(inputs, inputs.len(), &Device::Cpu)?, None));
        }
        if let Some(id) = inputs.iter().find(|&&id| id as usize >= self.spec.vocab_size) {
            bail!("token id {id} is beyond the vocabulary of {}", self.spec.vocab_size)
        }
        let gpu = crate::gpu::Gpu::of(&self.device)?;
        Ok((gpu.upload(inputs)?, Some(gpu.upload(targets)?)))
    }

    #[cfg(not(feature = "cuda"))]
    fn there(&self, inputs: &[u32], _: &[u32]) -> Result<(Tensor, Option<Tensor>)> {
        Ok((Tensor::from_slice(inputs, inputs.len(), &self.device)?, None))
    }

    /// Runs the blocks in order. `input` is the previous chunk's output, nothing for the first chunk.
    ///
    /// # Errors
    /// If `input` is none for this chunk, or ids or targets are beyond the vocabulary.
    pub fn forward(&self, params: &Params, input: Option<Tensor>, mb: &MicroBatch) -> Result<(Output, Vec<Saved>)> {
        self.forward_seen(params, input, mb, &mut |_, _| Ok(()))
    }

    /// As `forward`; `seen` is shown the output of each block but the head, with its index in the whole list.
    ///
    /// # Errors
    /// As `forward`, and those of `seen`.
    pub fn forward_seen(
        &self,
        params: &Params,
        input: Option<Tensor>,
        mb: &MicroBatch,
        seen: Seen<'_>,
    ) -> Result<(Output, Vec<Saved>)> {
        if let Some(x) = &input {
            self.check_hidden(x, mb)?;
        }
        let mut saved = Vec::with_capacity(self.blocks.len());
        let mut x = input;
        for (index, block) in self.range.clone().zip(&self.blocks) {
            match (block, x.take()) {
                (Block::Embedding(e), None) => {
                    x = Some(e.forward(params, mb, 0)?);
                    saved.push(Saved::Embedding);
                }
                (Block::Layer(l), Some(h)) => {
                    let (y, s) = l.forward(params, h, mb).map_err(|e| within(e, || format!("layer {}", index - 1)))?;
                    x = Some(y);
                    saved.push(Saved::Layer(Box::new(s)));
                }
                (Block::Head(h), Some(hidden)) => {
                    let (losses, s) = h.forward(params, hidden, mb).map_err(|e| within(e, || "the head".to_owned()))?;
                    saved.push(Saved::Head(s));
                    let output = match losses {
                        Losses::Read(losses) => Output::Losses(losses),
                        Losses::There(losses) => Output::Unread(losses),
                    };
                    return Ok((output, saved));
                }
                _ => bail!("a chunk was given input that does not fit its first block"),
            }
            if let Some(x) = &x {
                seen(index, x)?;
            }
        }
        match x {
            Some(x) => Ok((Output::Hidden(x), saved)),
            None => bail!("a chunk without blocks"),
        }
    }

    /// Runs the blocks in order and keeps nothing: losses as in `forward`, but with logits only where there are targets.
    ///
    /// # Errors
    /// As `forward`.
    pub fn evaluate(&self, params: &Params, input: Option<Tensor>, mb: &MicroBatch) -> Result<Output> {
        let (x, head) = self.hidden(params, input, mb, 0, |_, l, x| Ok(l.forward(params, x, mb)?.0))?;
        Ok(match head {
            Some(head) => Output::Losses(head.losses(params, &x, mb)?),
            None => Output::Hidden(x),
        })
    }

    /// `evaluate` of a whole model.
    pub fn losses(&self, params: &Params, mb: &MicroBatch) -> Result<Vec<f32>> {
        match self.evaluate(params, None, mb)? {
            Output::Losses(losses) => Ok(losses),
            Output::Unread(losses) => on_host(&losses)?.to_vec1(),
            Output::Hidden(_) => bail!("a chunk without the head has no loss"),
        }
    }

    /// Logits of every token of a micro-batch, [batch·seq, vocab], by a whole model.
    pub fn logits(&self, params: &Params, mb: &MicroBatch) -> Result<Tensor> {
        let (x, head) = self.hidden(params, None, mb, 0, |_, l, x| Ok(l.forward(params, x, mb)?.0))?;
        let Some(head) = head else { bail!("a chunk without the head has no logits") };
        let rows: Vec<usize> = (0..mb.batch * mb.seq).collect();
        head.logits(params, &x, &rows, mb.math)
    }

    /// The first block whose output is not finite, in words; the logits, if nothing before them is bad. Nothing for a chunk
    /// without the head whose outputs are all finite.
    pub fn first_bad_block(&self, params: &Params, input: Option<Tensor>, mb: &MicroBatch) -> Result<Option<String>> {
        let mut first = None;
        let mut look = |what: &dyn Fn() -> String, x: &Tensor| -> Result<()> {
            if first.is_none() && !all_finite(x)? {
                first = Some(what());
            }
            Ok(())
        };
        if let Some(x) = &input {
            look(&|| format!("input of block {}", self.range.start), x)?;
        }
        let (x, head) = self.hidden(params, input, mb, 0, |block, l, x| {
            if block == 1 && self.range.start == 0 {
                look(&|| "output of the embedding".to_owned(), &x)?;
            }
            let (y, _) = l.forward(params, x, mb)?;
            look(&|| format!("output of layer {}", block - 1), &y)?;
            Ok(y)
        })?;
        if let [Block::Embedding(_)] = self.blocks.as_slice() {
            look(&|| "output of the embedding".to_owned(), &x)?;
        }
        Ok(first.or_else(|| head.map(|_| "logits of the head".to_owned())))
    }

    /// What the head is given, or the next chunk, and the head where the chunk has it: the embedding, then `layer` for each
    /// layer with its index in the whole list. Token 0 of each row is at position `start`.
    pub(super) fn hidden(
        &self,
        params: &Params,
        input: Option<Tensor>,
        mb: &MicroBatch,
        start: usize,
        mut layer: impl FnMut(usize, &TransformerLayer, Tensor) -> Result<Tensor>,
    ) -> Result<(Tensor, Option<&Head>)> {
        if let Some(x) = &input {
            self.check_hidden(x, mb)?;
        }
        let (mut x, mut head) = (input, None);
        for (index, block) in self.range.clone().zip(&self.blocks) {
            x = Some(match (block, x.take()) {
                (Block::Embedding(e), None) => e.forward(params, mb, start)?,
                (Block::Layer(l), Some(x)) => layer(index, l, x)?,
                (Block::Head(h), Some(x)) => {
                    head = Some(h);
                    x
                }
                _ => bail!("a chunk was given input that does not fit its first block"),
            });
        }
        match x {
            Some(x) => Ok((x, head)),
            None => bail!("a chunk without blocks"),
        }
    }

    /// The blocks `range`, which are held.
    pub(super) fn held(&self, range: &Range<usize>) -> &[Block] {
        &self.blocks[range.start - self.range.start..range.end - self.range.start]
    }

    /// Kernels take shapes at their word, so what another rank sent is looked at first.
    pub(super) fn check_hidden(&self, x: &Tensor, mb: &MicroBatch) -> Result<()> {
        let expected = (mb.batch * mb.seq, self.spec.d_model);
        if x.dims2()? != expected {
            bail!("a chunk was given {:?} instead of {expected:?}", x.dims())
        }
        Ok(())
    }
}
