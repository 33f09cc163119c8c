//! A model, or a stage of one, as a list of blocks: embedding, layers, head.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Result, Tensor, bail};

use super::params::{ParamLayout, Params};
use super::spec::{Family, ModelSpec};
use super::{gpt2, llama};
use crate::kernels::Math;
use crate::kernels::attention::Cache;
use crate::kernels::optimizer::all_finite;
use crate::nn::{Embedding, Head, MicroBatch, TransformerLayer, head, transformer};

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

/// What comes out of the last block of a stage.
#[derive(Debug)]
pub enum Output {
    /// [batch·seq, d_model], for the next stage.
    Hidden(Tensor),
    /// Per token, in nats, 0 where ignored.
    Losses(Vec<f32>),
}

/// Blocks `range` of a model's list. It knows the places of its parameters, not their values.
#[derive(Debug)]
pub struct Model {
    pub spec: ModelSpec,
    pub layout: Arc<ParamLayout>,
    blocks: Vec<Block>,
    math: Math,
}

impl Model {
    /// The blocks `range` of `spec`'s list, with parameters laid out as in `layout`. `like` gives element type and device.
    pub fn new(
        spec: &ModelSpec,
        layout: Arc<ParamLayout>,
        range: Range<usize>,
        seed: u64,
        math: Math,
        like: &Tensor,
    ) -> Result<Self> {
        let all = match spec.family {
            Family::Gpt2 => gpt2::blocks(spec, &layout, range, seed)?,
            Family::Llama => llama::blocks(spec, &layout, range, seed, like)?,
        };
        Ok(Self { spec: spec.clone(), layout, blocks: all, math })
    }

    /// A micro-batch of `inputs` (row after row of `seq` ids) on this model's terms, with targets.
    pub fn micro_batch(&self, inputs: &[u32], targets: Vec<u32>, seq: usize) -> Result<MicroBatch> {
        if seq == 0 || !inputs.len().is_multiple_of(seq) {
            bail!("{} ids are no rows of {seq}", inputs.len())
        }
        Ok(MicroBatch {
            ids: Tensor::from_slice(inputs, inputs.len(), &Device::Cpu)?,
            targets,
            batch: inputs.len() / seq,
            seq,
            step: 0,
            first_sample: 0,
            scale: 1.0,
            training: false,
            math: self.math,
        })
    }

    /// Runs the blocks in order. `input` is the previous stage's output, nothing for the first stage.
    pub fn forward(&self, params: &Params, input: Option<Tensor>, mb: &MicroBatch) -> Result<(Output, Vec<Saved>)> {
        let mut saved = Vec::with_capacity(self.blocks.len());
        let mut x = input;
        for block in &self.blocks {
            match (block, x.take()) {
                (Block::Embedding(e), None) => {
                    x = Some(e.forward(params, mb, 0)?);
                    saved.push(Saved::Embedding);
                }
                (Block::Layer(l), Some(h)) => {
                    let (y, s) = l.forward(params, h, mb)?;
                    x = Some(y);
                    saved.push(Saved::Layer(Box::new(s)));
                }
                (Block::Head(h), Some(hidden)) => {
                    let (losses, s) = h.forward(params, hidden, mb)?;
                    saved.push(Saved::Head(s));
                    return Ok((Output::Losses(losses), saved));
                }
                _ => bail!("a stage was given input that does not fit its first block"),
            }
        }
        match x {
            Some(x) => Ok((Output::Hidden(x), saved)),
            None => bail!("a stage without blocks"),
        }
    }

    /// Adds weight gradients of what `forward` saved, last block first. `dy` is the next stage's gradient, nothing for the
    /// last stage. Returns the gradient for the previous stage.
    pub fn backward(
        &self,
        params: &Params,
        grads: &Params,
        saved: Vec<Saved>,
        dy: Option<Tensor>,
        mb: &MicroBatch,
    ) -> Result<Option<Tensor>> {
        let mut d = dy;
        for (block, saved) in self.blocks.iter().rev().zip(saved.into_iter().rev()) {
            d = match (block, saved, d.take()) {
                (Block::Head(h), Saved::Head(s), None) => Some(h.backward(params, grads, s, mb.math)?),
                (Block::Layer(l), Saved::Layer(s), Some(dy)) => Some(l.backward(params, grads, *s, &dy, mb)?),
                (Block::Embedding(e), Saved::Embedding, Some(dy)) => {
                    e.backward(grads, &dy, mb)?;
                    None
                }
                _ => bail!("a stage was given a gradient that does not fit its last block"),
            };
        }
        Ok(d)
    }

    /// Embedding, then `layer` for each layer, of a whole model. Returns what the head is given, and the head.
    fn hidden(
        &self,
        params: &Params,
        mb: &MicroBatch,
        start: usize,
        mut layer: impl FnMut(usize, &TransformerLayer, Tensor) -> Result<Tensor>,
    ) -> Result<(Tensor, &Head)> {
        let [Block::Embedding(embedding), layers @ .., Block::Head(head)] = self.blocks.as_slice() else {
            bail!("a stage is no whole model")
        };
        let mut x = embedding.forward(params, mb, start)?;
        for (index, block) in layers.iter().enumerate() {
            let Block::Layer(l) = block else { bail!("block {} is no layer", index + 1) };
            x = layer(index, l, x)?;
        }
        Ok((x, head))
    }

    /// Losses of a whole model without a backward: logits only where there are targets.
    pub fn losses(&self, params: &Params, mb: &MicroBatch) -> Result<Vec<f32>> {
        let (x, head) = self.hidden(params, mb, 0, |_, l, x| Ok(l.forward(params, x, mb)?.0))?;
        head.losses(params, &x, mb)
    }

    /// Logits of every token of a micro-batch, [batch·seq, vocab].
    pub fn logits(&self, params: &Params, mb: &MicroBatch) -> Result<Tensor> {
        let (x, head) = self.hidden(params, mb, 0, |_, l, x| Ok(l.forward(params, x, mb)?.0))?;
        let rows: Vec<usize> = (0..mb.batch * mb.seq).collect();
        head.logits(params, &x, &rows, mb.math)
    }

    /// The first block whose output is not finite, in words.
    pub fn first_bad_block(&self, params: &Params, mb: &MicroBatch) -> Result<String> {
        let mut first = None;
        let mut look = |name: String, x: &Tensor| -> Result<()> {
            if first.is_none() && !all_finite(x)? {
                first = Some(format!("output of {name}"));
            }
            Ok(())
        };
        self.hidden(params, mb, 0, |index, l, x| {
            if index == 0 {
                look("the embedding".to_owned(), &x)?;
            }
            let (y, _) = l.forward(params, x, mb)?;
            look(format!("layer {index}"), &y)?;
            Ok(y)
        })?;
        Ok(first.unwrap_or_else(|| "logits of the head".to_owned()))
    }

    /// An empty cache for `batch` rows of up to `capacity` tokens, with elements like `like`'s.
    pub fn cache(&self, batch: usize, capacity: usize, like: &Tensor) -> Result<KvCache> {
        let layers: Result<Vec<Cache>> = self
            .blocks
            .iter()
            .filter_map(|b| match b {
                Block::Layer(l) => Some(Cache::new(l.attention.shape(batch, 1), capacity, like.dtype())),
                _ => None,
            })
            .collect();
        Ok(KvCache { layers: layers?, batch, capacity, length: 0 })
    }

    /// Feeds `ids` ([cache.batch, n], row after row) after the tokens in the cache. Returns the logits behind the last of
    /// each row, [cache.batch, vocab].
    pub fn extend(&self, params: &Params, ids: &[u32], cache: &mut KvCache) -> Result<Tensor> {
        if ids.is_empty() || !ids.len().is_multiple_of(cache.batch) {
            bail!("{} ids are no rows for a cache of batch {}", ids.len(), cache.batch)
        }
        let n = ids.len() / cache.batch;
        let limit = cache.capacity.min(self.spec.context_length);
        if cache.length + n > limit {
            bail!("{} tokens are beyond the context of {limit}", cache.length + n)
        }
        let mb = self.micro_batch(ids, Vec::new(), n)?;
        let (start, layers) = (cache.length, &mut cache.layers);
        let (x, head) = self.hidden(params, &mb, start, |index, l, x| match layers.get_mut(index) {
            Some(layer) => l.extend(params, &x, &mb, layer, start),
            None => bail!("the cache has too few layers"),
        })?;
        cache.length += n;
        let last: Vec<usize> = (1..=cache.batch).map(|b| b * n - 1).collect();
        head.logits(params, &x, &last, mb.math)
    }
}

/// Keys and values of every layer for the tokens so far.
#[derive(Debug, Clone)]
pub struct KvCache {
    layers: Vec<Cache>,
    pub batch: usize,
    pub capacity: usize,
    /// Tokens of each row so far.
    pub length: usize,
}
