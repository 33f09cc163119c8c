//! Decoding step by step: a generator feeds new tokens and receives logits. A feed is plain data, so that it can be sent to the stages
//! of a pipeline too.

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use super::EvalError;
use runner_compute::model::{KvCache, Model, Params, StageInput};

/// New tokens for the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feed {
    /// [batch, n], row after row.
    pub ids: Vec<u32>,
    pub batch: usize,
    /// Position of the first new token: the tokens of each row that stay in the cache. 0 starts anew.
    pub start: usize,
    /// Tokens of each row that the cache must have room for until the next start.
    pub capacity: usize,
}

/// A model, wherever it is.
pub trait Decoder {
    /// The logits behind the last token of each row, [feed.batch, vocab].
    ///
    /// # Errors
    /// If the feed does not follow on what was fed before, an id is beyond the vocabulary, or a stage cannot be reached.
    fn feed(&mut self, feed: &Feed) -> Result<Tensor, EvalError>;
}

/// One chunk of a model, with its cache.
#[derive(Debug)]
pub struct StageDecoder<'a> {
    model: &'a Model,
    params: &'a Params,
    cache: Option<KvCache>,
}

impl<'a> StageDecoder<'a> {
    pub fn new(model: &'a Model, params: &'a Params) -> Self {
        Self { model, params, cache: None }
    }

    /// Runs `feed` through the chunk, given what the chunk before it returned ([batch·n, d_model]; nothing for the first,
    /// which reads the ids). Returns the same for the next chunk, or the logits from a chunk with the head.
    ///
    /// # Errors
    /// If the feed does not follow on what was fed before, or does not fit the chunk.
    pub fn feed(&mut self, feed: &Feed, input: Option<Tensor>) -> Result<Tensor, EvalError> {
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
        let input = input.map_or(StageInput::Ids(&feed.ids), StageInput::Hidden);
        let output = self.model.extend_stage(self.params, input, &mut cache)?;
        self.cache = Some(cache);
        Ok(output)
    }
}

/// A whole model on this rank.
#[derive(Debug)]
pub struct WholeDecoder<'a>(StageDecoder<'a>);

impl<'a> WholeDecoder<'a> {
    /// # Errors
    /// If `model` is a chunk.
    pub fn new(model: &'a Model, params: &'a Params) -> Result<Self, EvalError> {
        if model.range != (0..model.spec.block_count()) {
            return Err(EvalError::Request("a chunk of a model cannot generate on its own".into()));
        }
        Ok(Self(StageDecoder::new(model, params)))
    }
}

impl Decoder for WholeDecoder<'_> {
    fn feed(&mut self, feed: &Feed) -> Result<Tensor, EvalError> {
        self.0.feed(feed, None)
    }
}
