//! A model, or a chunk of one, as a list of blocks: embedding, layers, head. A chunk is a contiguous range of the list; a
//! pipeline's rank holds one or several, over one layout.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Result, Tensor, bail};

use super::block::{Block, BlockActivations, BlockBuilder, SavedActivations};
use crate::kernels::loss::Losses;
use crate::kernels::optimizer::all_finite;
use crate::kernels::out_of_memory::with_computation;
use crate::kernels::pointwise::Rope;
use crate::nn::Params;
use crate::nn::{self, Embedding, ForwardPass, Head, MicroBatch, Stream, TransformerLayer};
use runner_spec::experiment::Recompute;
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::{Carried, CarriedTensor, ModelSpec};

/// A function that is called with a block's index and its output.
pub type OutputHook<'a> = &'a mut dyn FnMut(usize, &Tensor) -> Result<()>;

/// The output of a chunk's last block.
#[derive(Debug)]
pub enum Output {
    /// What flows into the next chunk.
    Hidden(Stream),
    /// The loss of each token.
    Losses(Losses),
}

/// The name of what `block` of a model's list returns, unless it is the head.
#[must_use]
pub fn name_of_output(block: usize) -> String {
    match block.checked_sub(1) {
        None => "output of the embedding".to_owned(),
        Some(layer) => format!("output of layer {layer}"),
    }
}

/// Blocks `range` of a model's list. They hold the indexes of their parameters, not the values.
#[derive(Debug)]
pub struct Model {
    pub spec: ModelSpec,
    pub layout: Arc<ParamLayout>,
    /// The chunk, within the whole model's list.
    pub range: Range<usize>,
    pub(super) blocks: Vec<Block>,
    /// The carried tensors of the whole model.
    pub(super) carried: Vec<Carried>,
    /// The places of those that each block of the chunk reads.
    reads: Vec<BTreeSet<usize>>,
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
        like: &Tensor,
    ) -> Result<Self> {
        if range.is_empty() || range.end > spec.block_count() {
            bail!("blocks {range:?} are not within {} blocks", spec.block_count())
        }
        let decoder = spec.decoder();
        let tables = decoder.rotary_tables([range.clone()].into_iter()).into_iter();
        let tables = tables.map(|r| Ok((r, Rope::new(&r, like)?)));
        let ropes = tables.collect::<Result<Vec<_>>>()?;
        let builder = BlockBuilder { decoder: &decoder, layout: &layout, seed, ropes: &ropes, like };
        let blocks = range.clone().map(|index| builder.block(index)).collect::<Result<_>>()?;
        let reads = range.clone().map(|index| decoder.carried_read_by(index)).collect();
        let (spec, device) = (spec.clone(), like.device().clone());
        Ok(Self { spec, layout, range, blocks, carried: decoder.carried, reads, device })
    }

    /// Sets which activations the layers' backward computes again.
    #[must_use]
    pub fn with_recompute(mut self, recompute: Recompute) -> Self {
        for block in &mut self.blocks {
            if let Block::Layer(layer) = block {
                layer.recompute = recompute;
            }
        }
        self
    }

    /// A micro-batch of `inputs` (row after row of `seq` ids) and their targets, for this model's device and arithmetic.
    pub fn micro_batch(&self, inputs: &[u32], targets: Vec<u32>, seq: usize) -> Result<MicroBatch> {
        if seq == 0 || !inputs.len().is_multiple_of(seq) {
            bail!("{} ids cannot be divided into rows of {seq}", inputs.len())
        }
        let (ids, device_targets) = self.upload(inputs, &targets)?;
        Ok(MicroBatch {
            ids,
            targets,
            device_targets,
            batch: inputs.len() / seq,
            seq,
            valid_lengths: None,
            documents: None,
            step: 0,
            first_sample: 0,
            sample_stride: 1,
            scale: 1.0,
            training: false,
        })
    }

    /// Ids and targets on the model's device. Ids are checked here because a GPU's kernels do not check them.
    fn upload(&self, inputs: &[u32], targets: &[u32]) -> Result<(Tensor, Option<Tensor>)> {
        #[cfg(feature = "cuda")]
        if self.device.is_cuda() {
            if let Some(id) = inputs.iter().find(|&&id| id as usize >= self.spec.vocab_size) {
                bail!("token id {id} is beyond the vocabulary of {}", self.spec.vocab_size)
            }
            let gpu = crate::gpu::Gpu::of_device(&self.device)?;
            return Ok((gpu.upload(inputs)?, Some(gpu.upload(targets)?)));
        }
        let _ = targets;
        Ok((Tensor::from_slice(inputs, inputs.len(), &self.device)?, None))
    }

    /// [`Self::forward_blocks`] of all blocks.
    ///
    /// # Errors
    /// Those of `forward_blocks`.
    pub fn forward_with_hook(
        &self,
        params: &Params,
        input: Option<Stream>,
        mb: &MicroBatch,
        hook: OutputHook<'_>,
    ) -> Result<(Output, Vec<SavedActivations>)> {
        let mut saved = Vec::with_capacity(self.blocks.len());
        let output = self.forward_blocks(params, input, mb, self.range.clone(), &mut saved, hook)?;
        Ok((output, saved))
    }

    /// Runs `blocks` (indexes in the whole model's list) in order, and calls `hook` with the output of each block but the head, and its index
    /// in the whole list. `input` is the output of the block before them, nothing for the embedding. Adds the activations that their backward
    /// needs to `saved`.
    ///
    /// # Errors
    /// If `input` does not fit these blocks, ids or targets are beyond the vocabulary, or `hook` fails.
    pub fn forward_blocks(
        &self,
        params: &Params,
        input: Option<Stream>,
        mb: &MicroBatch,
        blocks: Range<usize>,
        saved: &mut Vec<SavedActivations>,
        hook: OutputHook<'_>,
    ) -> Result<Output> {
        if blocks.start < self.range.start || blocks.end > self.range.end {
            bail!("forward of blocks {blocks:?}, but the chunk has {:?}", self.range)
        }
        let (stream, head) = self.run_to_head(params, mb, input, blocks, |pass, index, layer, mut x| {
            let of = if let Some(layer) = layer {
                let (y, activations) =
                    layer.forward(pass, x).map_err(|e| with_computation(e, || format!("layer {}", index - 1)))?;
                x = y;
                BlockActivations::Layer(Box::new(activations))
            } else {
                BlockActivations::Embedding
            };
            saved.push(SavedActivations { of, carried: self.read_by(index, pass.carried) });
            hook(index, &x)?;
            Ok(x)
        })?;
        let Some(head) = head else { return Ok(Output::Hidden(stream)) };
        let Stream { x, carried } = stream;
        let carried = self.read_by(self.spec.layers + 1, &carried);
        let pass = ForwardPass { params, mb, carried: &carried };
        let (losses, of) = head.forward(pass, x).map_err(|e| with_computation(e, || "the head".to_owned()))?;
        saved.push(SavedActivations { of: BlockActivations::Head(of), carried });
        Ok(Output::Losses(losses))
    }

    /// Runs the blocks in order and keeps no activations. The losses are those of `forward_with_hook`, but logits are computed only for
    /// tokens that have a target.
    ///
    /// # Errors
    /// If `input` does not fit this chunk, or ids or targets are beyond the vocabulary.
    pub fn evaluate(&self, params: &Params, input: Option<Stream>, mb: &MicroBatch) -> Result<Output> {
        let (stream, head) = self.forward_to_head(params, mb, input)?;
        Ok(match head {
            Some(head) => {
                let pass = ForwardPass { params, mb, carried: &stream.carried };
                Output::Losses(Losses::Ready(head.losses(pass, &stream.x)?))
            }
            None => Output::Hidden(stream),
        })
    }

    /// `evaluate` of a whole model.
    pub fn losses(&self, params: &Params, mb: &MicroBatch) -> Result<Vec<f32>> {
        match self.evaluate(params, None, mb)? {
            Output::Losses(losses) => losses.read(),
            Output::Hidden(_) => bail!("a chunk without the head has no loss"),
        }
    }

    /// Logits of every token of a micro-batch, `[batch·seq, vocab]`, by a whole model.
    pub fn logits(&self, params: &Params, mb: &MicroBatch) -> Result<Tensor> {
        let (stream, Some(head)) = self.forward_to_head(params, mb, None)? else {
            bail!("a chunk without the head has no logits")
        };
        let pass = ForwardPass { params, mb, carried: &stream.carried };
        head.logits(pass, &stream.x, &(0..mb.batch * mb.seq).collect::<Vec<_>>())
    }

    /// Describes the first tensor that is not finite: `input`, or a block's output. If all of them are finite, it is the head's logits, since
    /// a caller has found the losses not to be finite; `None` for a chunk without the head.
    pub fn first_block_not_finite(
        &self,
        params: &Params,
        input: Option<Stream>,
        mb: &MicroBatch,
    ) -> Result<Option<String>> {
        let mut first = None;
        let mut check = |describe: &dyn Fn() -> String, x: &Tensor| -> Result<()> {
            if first.is_none() && !all_finite(x)? {
                first = Some(describe());
            }
            Ok(())
        };
        if let Some((x, sent)) = input.as_ref().zip(self.range.start.checked_sub(1)) {
            let received = || format!("{}, received from another stage", name_of_output(sent));
            check(&received, &x.x)?;
            for (place, tensor) in &x.carried {
                let from = name_of_output(self.carried[*place].from);
                check(&|| format!("{from}, received from another stage"), tensor)?;
            }
        }
        let (_, head) = self.run_to_head(params, mb, input, self.range.clone(), |pass, block, layer, x| {
            let y = match layer {
                Some(layer) => layer.forward(pass, x)?.0,
                None => x,
            };
            check(&|| name_of_output(block), &y)?;
            Ok(y)
        })?;
        Ok(first.or_else(|| head.map(|_| "logits of the head".to_owned())))
    }

    /// Runs the embedding and the layers, and keeps no activations. Returns what [`run_to_head`](Self::run_to_head) returns.
    fn forward_to_head(
        &self,
        params: &Params,
        mb: &MicroBatch,
        input: Option<Stream>,
    ) -> Result<(Stream, Option<&Head>)> {
        self.run_to_head(params, mb, input, self.range.clone(), |pass, _, layer, x| match layer {
            Some(layer) => Ok(layer.forward(pass, x)?.0),
            None => Ok(x),
        })
    }

    /// Runs the embedding, and gives its output to `step`; then gives each layer to `step` with the layer's input. `step` gets the index
    /// in the whole list, and returns the block's output. Returns the input of the head or of the next blocks, and the head where `blocks`
    /// have it.
    pub(super) fn run_to_head(
        &self,
        params: &Params,
        mb: &MicroBatch,
        input: Option<Stream>,
        blocks: Range<usize>,
        mut step: impl FnMut(ForwardPass<'_>, usize, Option<&TransformerLayer>, Tensor) -> Result<Tensor>,
    ) -> Result<(Stream, Option<&Head>)> {
        if let Some(stream) = &input {
            self.check_hidden(&stream.x, mb)?;
        }
        let (mut stream, mut head) = (input, None);
        for (index, block) in blocks.clone().zip(self.blocks_in(&blocks)) {
            stream = Some(match (block, stream.take()) {
                (Block::Embedding(e), None) => {
                    let pass = ForwardPass::new(params, mb);
                    let x = step(pass, index, None, e.forward(pass, 0)?)?;
                    self.embedded(pass, e, x)?
                }
                (Block::Layer(l), Some(Stream { x, carried })) => {
                    let x = step(ForwardPass { params, mb, carried: &carried }, index, Some(l), x)?;
                    self.after(index, x, carried)
                }
                (Block::Head(h), Some(stream)) => {
                    head = Some(h);
                    stream
                }
                _ => bail!("a chunk was given input that does not fit its first block"),
            });
        }
        match stream {
            Some(stream) => Ok((stream, head)),
            None => bail!("a chunk without blocks"),
        }
    }

    /// What flows out of the embedding, whose output is `x`.
    pub(super) fn embedded(&self, pass: ForwardPass<'_>, embedding: &Embedding, x: Tensor) -> Result<Stream> {
        Ok(self.after(0, x, embedding.table_rows(pass)?))
    }

    /// What flows out of `block`, whose output is `x`, given the carried tensors that flowed into it.
    fn after(&self, block: usize, x: Tensor, mut carried: nn::Carried) -> Stream {
        carried.retain(|(place, _)| self.carried[*place].is_handed_to(block + 1));
        let outputs =
            self.carried.iter().enumerate().filter(|(_, of)| of.from == block && of.of == CarriedTensor::Output);
        carried.extend(outputs.map(|(place, _)| (place, x.clone())));
        carried.sort_by_key(|(place, _)| *place);
        Stream { x, carried }
    }

    /// The tensors of `carried` that `block` reads.
    fn read_by(&self, block: usize, carried: &nn::Carried) -> nn::Carried {
        let reads = &self.reads[block - self.range.start];
        carried.iter().filter(|(place, _)| reads.contains(place)).cloned().collect()
    }

    /// What flows into `block`, packed into one tensor by another chunk. Gradients have the same form.
    ///
    /// # Errors
    /// If the rows have another width.
    pub fn unpacked(&self, packed: Tensor, block: usize) -> Result<Stream> {
        let handed = self.carried.iter().enumerate().filter(|(_, carried)| carried.is_handed_to(block));
        let widths: Vec<_> = handed.map(|(place, carried)| (place, carried.width)).collect();
        Stream::unpacked(packed, self.spec.d_model, &widths)
    }

    /// The blocks `range`, indexes in the whole list, which must be in this chunk.
    pub(super) fn blocks_in(&self, range: &Range<usize>) -> &[Block] {
        &self.blocks[range.start - self.range.start..range.end - self.range.start]
    }

    /// Checks the shape of a tensor that another rank sent: kernels do not check shapes.
    pub(super) fn check_hidden(&self, x: &Tensor, mb: &MicroBatch) -> Result<()> {
        let expected = (mb.batch * mb.seq, self.spec.d_model);
        if x.dims2()? != expected {
            bail!("a chunk was given {:?} instead of {expected:?}", x.dims())
        }
        Ok(())
    }
}
