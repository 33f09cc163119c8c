//! Decoding step by step: a generator feeds new tokens and receives logits.

use candle_core::Tensor;

use super::EvalError;
use runner_compute::model::{KvCache, Model, Params};

/// New tokens for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFeed {
    /// [batch, n], row after row.
    pub ids: Vec<u32>,
    pub batch: usize,
    /// Position of the first new token: the tokens of each row that stay in the cache. 0 starts anew.
    pub start: usize,
    /// Tokens of each row that the cache must have space for until the next start.
    pub capacity: usize,
}

/// One chunk of a model, with its cache.
#[derive(Debug)]
pub struct ChunkDecoder<'a> {
    model: &'a Model,
    params: &'a Params,
    cache: Option<KvCache>,
}

impl<'a> ChunkDecoder<'a> {
    pub fn new(model: &'a Model, params: &'a Params) -> Self {
        Self { model, params, cache: None }
    }

    /// Runs `feed` through the chunk, given what the chunk before it returned ([batch·n, d_model]; nothing for the first,
    /// which reads the ids). Returns the same for the next chunk, or the logits from a chunk with the head.
    ///
    /// # Errors
    /// If the feed does not follow on what was fed before, or does not fit the chunk.
    pub fn extend(&mut self, feed: &TokenFeed, input: Option<Tensor>) -> Result<Tensor, EvalError> {
        let fits = |c: &KvCache| (c.batch, c.capacity) == (feed.batch, feed.capacity);
        let mut cache = match self.cache.take().filter(fits) {
            Some(cache) => cache,
            None => self.model.new_cache(feed.batch, feed.capacity, &self.params.flat)?,
        };
        if feed.start > cache.length {
            let (start, length) = (feed.start, cache.length);
            return Err(EvalError::Request(format!("token {start} is fed behind {length} tokens")));
        }
        cache.length = feed.start;
        let output = self.model.extend_chunk(self.params, &feed.ids, input, &mut cache)?;
        self.cache = Some(cache);
        Ok(output)
    }
}
