//! Decoding with a key-value cache, by a whole model or chunk by chunk.

use candle_core::{Device, Result, Tensor, bail};

use super::block::Block;
use super::blocks::Model;
use crate::kernels::attention::new_cache;
use crate::nn::Params;
use crate::nn::{ForwardPass, MicroBatch};

/// Keys and values of every layer of a chunk for the tokens so far.
#[derive(Debug)]
pub struct KvCache {
    /// Made by `kernels::attention::new_cache`, for each layer with attention.
    layers: Vec<Tensor>,
    pub batch: usize,
    pub capacity: usize,
    /// Tokens of each row so far.
    pub length: usize,
}

impl Model {
    /// An empty cache for `batch` rows of up to `capacity` tokens, with elements like `like`'s.
    pub fn new_cache(&self, batch: usize, capacity: usize, like: &Tensor) -> Result<KvCache> {
        let layers: Result<Vec<Tensor>> = self
            .blocks
            .iter()
            .filter_map(|b| match b {
                Block::Layer(layer) => layer.attention().map(|of| new_cache(of.shape(batch, 1), capacity, like)),
                _ => None,
            })
            .collect();
        Ok(KvCache { layers: layers?, batch, capacity, length: 0 })
    }

    /// Feeds tokens after those in the cache: `input`, the previous chunk's output, `[batch·n, d_model]`; or, for a chunk with the embedding,
    /// `ids`, `[batch, n]`, row after row. Returns `[cache.batch·n, d_model]` for the next chunk, or from a chunk with the
    /// head the logits after the last token of each row, `[cache.batch, vocab]`.
    ///
    /// # Errors
    /// If `input` does not fit this chunk or the rows of the cache, or has more tokens than the cache has space for.
    pub fn extend_chunk(
        &self,
        params: &Params,
        ids: &[u32],
        input: Option<Tensor>,
        cache: &mut KvCache,
    ) -> Result<Tensor> {
        let tokens = input.as_ref().map_or(Ok(ids.len()), |x| x.dim(0))?;
        if tokens == 0 || !tokens.is_multiple_of(cache.batch) {
            bail!("{tokens} ids cannot be divided among the rows of a cache of batch {}", cache.batch)
        }
        let n = tokens / cache.batch;
        let limit = cache.capacity.min(self.spec.context_length);
        if cache.length + n > limit {
            bail!("{} tokens are beyond the context of {limit}", cache.length + n)
        }
        let mb = if input.is_some() {
            self.micro_batch_without_ids(cache.batch, n)?
        } else {
            self.micro_batch(ids, Vec::new(), n)?
        };
        let start = cache.length;
        let mut layers = cache.layers.iter();
        let pass = ForwardPass { params, mb: &mb };
        let (x, head) = self.run_to_head(pass, input, self.range.clone(), start, |_, layer, x| {
            let Some(layer) = layer else { return Ok(x) };
            match (layer.attention(), layers.as_slice()) {
                (None, _) => Ok(layer.forward(pass, x)?.0),
                (Some(_), [cache, ..]) => {
                    layers.next();
                    layer.extend(pass, x, cache, start)
                }
                (Some(_), []) => bail!("the cache has too few layers"),
            }
        })?;
        let y = match head {
            Some(head) => {
                let last: Vec<usize> = (1..=cache.batch).map(|b| b * n - 1).collect();
                head.logits(pass, &x, &last)?
            }
            None => x,
        };
        cache.length += n;
        Ok(y)
    }

    /// A micro-batch for chunks after the embedding, which read no ids.
    fn micro_batch_without_ids(&self, batch: usize, seq: usize) -> Result<MicroBatch> {
        let ids = Tensor::zeros(0, candle_core::DType::U32, &Device::Cpu)?;
        Ok(MicroBatch { ids, batch, seq, ..self.micro_batch(&[0], Vec::new(), 1)? })
    }
}
