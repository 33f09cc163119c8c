//! Decoding with a key-value cache, by a whole model or chunk by chunk.

use candle_core::{Result, Tensor, bail};

use super::block::Block;
use super::blocks::Model;
use crate::kernels::attention::new_cache;
use crate::kernels::embedding::take_rows;
use crate::nn::Params;
use crate::nn::{Embedding, ForwardPass};

/// Keys and values of every layer of a chunk for the tokens so far.
#[derive(Debug)]
pub struct KvCache {
    /// Made by `kernels::attention::new_cache`, for each layer with attention.
    layers: Vec<Tensor>,
    pub batch: usize,
    pub capacity: usize,
    /// Tokens of each row so far.
    pub length: usize,
    /// The ids of each row, for an embedding that reads those before a token.
    ids: Vec<Vec<u32>>,
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
        Ok(KvCache { layers: layers?, batch, capacity, length: 0, ids: vec![Vec::new(); batch] })
    }

    /// Feeds tokens after those in the cache: `ids`, `[batch, n]`, row after row; and, unless the chunk has the embedding, `input`, the previous
    /// chunk's output. Returns the output for the next chunk, packed, or from a chunk with the head the logits after the last token of each
    /// row, `[cache.batch, vocab]`.
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
        let tokens = ids.len();
        if tokens == 0 || !tokens.is_multiple_of(cache.batch) {
            bail!("{tokens} ids cannot be divided among the rows of a cache of batch {}", cache.batch)
        }
        let n = tokens / cache.batch;
        let limit = cache.capacity.min(self.spec.context_length);
        if cache.length + n > limit {
            bail!("{} tokens are beyond the context of {limit}", cache.length + n)
        }
        let mb = self.micro_batch(ids, Vec::new(), n)?;
        let (start, mut blocks) = (cache.length, self.range.clone());
        let input = match (input, self.blocks.first()) {
            (Some(packed), _) => Some(self.unpacked(packed, blocks.start)?),
            (None, Some(Block::Embedding(embedding))) => {
                blocks.start += 1;
                let x = self.embed_after(params, embedding, ids, cache)?;
                Some(self.embedded(ForwardPass::new(params, &mb), embedding, x)?)
            }
            (None, _) => None,
        };
        let mut layers = cache.layers.iter();
        let (stream, head) = self.run_to_head(params, &mb, input, blocks, |pass, _, layer, x| {
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
                let pass = ForwardPass { params, mb: &mb, carried: &stream.carried };
                head.logits(pass, &stream.x, &last)?
            }
            None => stream.packed()?,
        };
        cache.length += n;
        Ok(y)
    }

    /// The embedding's output for `ids` after the tokens in the cache, on some of which it may depend.
    fn embed_after(&self, params: &Params, embedding: &Embedding, ids: &[u32], cache: &mut KvCache) -> Result<Tensor> {
        let (n, start, back) = (ids.len() / cache.batch, cache.length, embedding.sums.tokens_back());
        let back = back.min(start);
        let mut read = Vec::with_capacity(cache.batch * (back + n));
        for (row, new) in cache.ids.iter_mut().zip(ids.chunks_exact(n)) {
            row.truncate(start);
            row.extend(new);
            read.extend(&row[start - back..]);
        }
        let mb = self.micro_batch(&read, Vec::new(), back + n)?;
        let x = embedding.forward(ForwardPass::new(params, &mb), start - back)?;
        if back == 0 {
            return Ok(x);
        }
        let new: Vec<usize> = (0..read.len()).filter(|row| row % (back + n) >= back).collect();
        take_rows(&x, &new)
    }
}
