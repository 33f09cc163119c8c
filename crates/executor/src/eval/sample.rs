//! Continuations of prompts, with a key-value cache: each new token costs one pass over the cache.

use candle_core::{DType, Tensor};
use candle_transformers::generation::{LogitsProcessor, Sampling};
use serde::{Deserialize, Serialize};

use crate::error::ExecError;
use runner_compute::kernels::on_host;
use runner_compute::model::{KvCache, Model, Params};
use runner_data::{ModelTokenizer, TextTokenizer, tokens_kept};
use runner_spec::experiment::{SampleBatch, Samples};
use runner_spec::model::ModelSpec;

/// New tokens for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFeed {
    /// `[batch, n]`, row after row.
    pub ids: Vec<u32>,
    pub batch: usize,
    /// Position of the first new token: the tokens of each row that stay in the cache. 0 empties the cache.
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

    /// The first entry of the block list that the chunk has.
    pub fn first_block(&self) -> usize {
        self.model.range.start
    }

    /// Runs `feed` through the chunk, given what the chunk before it returned, nothing for the first. Returns the same for the next chunk, or the logits from a chunk with the head.
    ///
    /// # Errors
    /// If the feed does not follow on what was fed before, or does not fit the chunk.
    pub fn extend(&mut self, feed: &TokenFeed, input: Option<Tensor>) -> Result<Tensor, ExecError> {
        let fits = |c: &KvCache| (c.batch, c.capacity) == (feed.batch, feed.capacity);
        let mut cache = match self.cache.take().filter(fits) {
            Some(cache) => cache,
            None => self.model.new_cache(feed.batch, feed.capacity, &self.params.flat)?,
        };
        if feed.start > cache.length {
            let (start, length) = (feed.start, cache.length);
            return Err(ExecError::Request(format!("token {start} is fed behind {length} tokens")));
        }
        cache.length = feed.start;
        let output = self.model.extend_chunk(self.params, &feed.ids, input, &mut cache)?;
        self.cache = Some(cache);
        Ok(output)
    }
}

/// One continuation of one prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Continuation {
    pub prompt: String,
    pub index: usize,
    /// The text after the prompt, up to the token that ends a text.
    pub text: String,
    pub tokens: usize,
}

/// Generates `spec.count` continuations of each prompt by a whole model. Continuation i of prompt p draws from its own generator, seeded with
/// `spec.seed` + p·count + i.
///
/// # Errors
/// If a prompt cannot be encoded, or `model` is a chunk.
pub fn generate(
    model: &Model,
    params: &Params,
    tokenizer: &ModelTokenizer,
    spec: &Samples,
) -> Result<Vec<Continuation>, ExecError> {
    if model.range != (0..model.spec.block_count()) {
        return Err(ExecError::Request("a chunk of a model cannot generate on its own".into()));
    }
    // A prompt that cannot be encoded is reported before any token is sampled.
    for prompt in &spec.prompts {
        tokenizer.encode_prompt(prompt)?;
    }
    let mut decoder = ChunkDecoder::new(model, params);
    let mut all = Vec::new();
    for batch in spec.batches() {
        let extend = &mut |feed: &TokenFeed| decoder.extend(feed, None);
        all.extend(continue_prompt(extend, &model.spec, tokenizer, spec, &batch)?);
    }
    Ok(all)
}

/// The continuations of `batch`, one of `spec`, by a model of shape `model`. They do not depend on the other batches. `extend` feeds new
/// tokens to the model, and returns the logits after the last token of each row, `[feed.batch, vocab]`.
///
/// # Errors
/// If the prompt cannot be encoded, or those of `extend`.
pub fn continue_prompt(
    extend: &mut dyn FnMut(&TokenFeed) -> Result<Tensor, ExecError>,
    model: &ModelSpec,
    tokenizer: &ModelTokenizer,
    spec: &Samples,
    batch: &SampleBatch,
) -> Result<Vec<Continuation>, ExecError> {
    let Some(prompt) = spec.prompts.get(batch.prompt) else { return Ok(Vec::new()) };
    let seed = spec.seed.wrapping_add((batch.prompt * spec.count) as u64);
    let indices = batch.continuations.clone();
    let mut start = tokenizer.encode_prompt(prompt)?;
    let written = start[tokenizer.prefix().len()..].to_vec();
    if start.is_empty() {
        // A document starts after an end-of-text token; without one, any token must do.
        start.push(tokenizer.end_token().unwrap_or(0));
    }
    if indices.is_empty() || spec.max_tokens == 0 {
        return Ok(Vec::new());
    }
    let vocab = tokenizer.text.vocab_size().min(model.vocab_size);
    let mut processors: Vec<LogitsProcessor> =
        indices.clone().map(|i| LogitsProcessor::from_sampling(seed.wrapping_add(i as u64), sampling(spec))).collect();
    let mut rows: Vec<Vec<u32>> = vec![start.clone(); indices.len()];
    let mut ended = vec![false; indices.len()];
    let mut window = Window::new(start.len().saturating_add(spec.max_tokens), model.context_length, tokenizer.prefix());
    // Wherever the model is, tokens are drawn here, from logits as f32.
    let mut feed = |rows: &[Vec<u32>]| -> Result<Tensor, ExecError> {
        let logits = on_host(&extend(&window.next(rows))?)?;
        Ok(if logits.dtype() == DType::BF16 { logits.to_dtype(DType::F32)? } else { logits })
    };
    let mut logits = feed(&rows)?;
    for n in 0..spec.max_tokens {
        for (row, processor) in processors.iter_mut().enumerate() {
            // Rows of a padded vocabulary are no tokens.
            let token = draw(processor, &logits.get(row)?.narrow(0, 0, vocab)?, spec)?;
            ended[row] |= tokenizer.is_end(token);
            rows[row].push(token);
        }
        if ended.iter().all(|&e| e) || n + 1 == spec.max_tokens {
            break;
        }
        logits = feed(&rows)?;
    }
    let continuation = |(index, row): (usize, &Vec<u32>)| {
        let new: Vec<u32> = row[start.len()..].iter().copied().take_while(|&t| !tokenizer.is_end(t)).collect();
        let text = text_after(&tokenizer.text, &written, &new);
        Continuation { prompt: prompt.to_owned(), index, text, tokens: new.len() }
    };
    Ok(indices.zip(&rows).map(continuation).collect())
}

/// The text of the tokens `new` after those of `prompt`. It depends on the prompt's last token: many decoders drop the blank in front of the
/// first word.
fn text_after(tokenizer: &TextTokenizer, prompt: &[u32], new: &[u32]) -> String {
    let last = &prompt[prompt.len().saturating_sub(1)..];
    let before = tokenizer.decode(last).len();
    tokenizer.decode(&[last, new].concat()).get(before..).unwrap_or_default().to_owned()
}

/// Draws a token from `logits` in the order of `transformers`: first the temperature, then `top_k`, and `top_p` of the probability that
/// `top_k` leaves.
fn draw(processor: &mut LogitsProcessor, logits: &Tensor, spec: &Samples) -> candle_core::Result<u32> {
    processor.sample_f(logits, |probabilities| {
        if let (Some(k), Some(_)) = (spec.top_k, nucleus(spec)) {
            keep_most_likely(probabilities, k);
        }
    })
}

/// The settings of candle's sampler. With both `top_k` and `top_p`, [`draw`] applies `top_k`, because candle measures `top_p` on the
/// probabilities before `top_k`.
fn sampling(spec: &Samples) -> Sampling {
    let temperature = spec.temperature;
    match (spec.top_k, nucleus(spec)) {
        _ if temperature == 0.0 => Sampling::ArgMax,
        (_, Some(p)) => Sampling::TopP { p, temperature },
        (Some(k), None) => Sampling::TopK { k, temperature },
        (None, None) => Sampling::All { temperature },
    }
}

/// `top_p`, if it leaves out tokens.
fn nucleus(spec: &Samples) -> Option<f64> {
    spec.top_p.filter(|p| *p < 1.0)
}

/// Sets all but the `k` largest of `probabilities`, and those equal to the smallest of them, to zero, and divides the others by their sum.
fn keep_most_likely(probabilities: &mut [f32], k: usize) {
    if k >= probabilities.len() {
        return;
    }
    let mut sorted = probabilities.to_vec();
    let (_, least, _) = sorted.select_nth_unstable_by(k.saturating_sub(1), |a, b| b.total_cmp(a));
    let is_kept = |probability: f32| probability >= *least;
    let sum: f32 = probabilities.iter().copied().filter(|probability| is_kept(*probability)).sum();
    for probability in probabilities {
        *probability = if is_kept(*probability) { *probability / sum } else { 0.0 };
    }
}

/// The part of the rows that the model still sees. When the context is full, the window starts again with its later half after the prefix
/// of prompts, so long texts cost a constant number of passes per token.
#[derive(Debug)]
struct Window<'a> {
    capacity: usize,
    prefix: &'a [u32],
    /// Tokens of each row in the cache.
    cached: usize,
    /// Tokens of each row that were fed or skipped.
    fed: usize,
}

impl<'a> Window<'a> {
    fn new(tokens: usize, context_length: usize, prefix: &'a [u32]) -> Self {
        Self { capacity: tokens.min(context_length), prefix, cached: 0, fed: 0 }
    }

    /// The new tokens of `rows`, which are of equal length.
    fn next(&mut self, rows: &[Vec<u32>]) -> TokenFeed {
        let length = rows.first().map_or(0, Vec::len);
        let mut prefix: &[u32] = &[];
        if self.cached + (length - self.fed) > self.capacity {
            let kept = tokens_kept(self.capacity).min(length);
            self.cached = 0;
            self.fed = length - kept;
            if self.prefix.len() + kept <= self.capacity {
                prefix = self.prefix;
            }
        }
        let ids: Vec<u32> = rows.iter().flat_map(|row| prefix.iter().chain(&row[self.fed..])).copied().collect();
        let feed = TokenFeed { ids, batch: rows.len(), start: self.cached, capacity: self.capacity };
        self.cached += prefix.len() + length - self.fed;
        self.fed = length;
        feed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use runner_spec::experiment::Tokenizer;

    /// Logits, settings, and the tokens that the warpers of `transformers` leave.
    #[derive(Deserialize)]
    struct KeptTokens {
        logits: Vec<f32>,
        cases: Vec<KeptCase>,
    }

    #[derive(Deserialize)]
    struct KeptCase {
        temperature: f64,
        top_k: Option<usize>,
        top_p: Option<f64>,
        kept: BTreeSet<u32>,
    }

    /// The fixture is written by `tests/golden/sampling.py`. Every kept token has a probability of at least 1%, so that 4,000 draws
    /// have each of them.
    #[test]
    fn tokens_are_drawn_from_those_that_transformers_keeps() {
        let fixture = include_str!("../../../../tests/golden/sampling.json");
        let KeptTokens { logits, cases } = serde_json::from_str(fixture).unwrap();
        let logits = Tensor::new(logits, &candle_core::Device::Cpu).unwrap();
        assert!(cases.iter().filter(|case| case.top_k.is_some() && case.top_p.is_some()).count() >= 6);
        for KeptCase { temperature, top_k, top_p, kept } in cases {
            let spec = Samples { temperature, top_k, top_p, ..Samples::default() };
            let mut processor = LogitsProcessor::from_sampling(1, sampling(&spec));
            let drawn: BTreeSet<u32> = (0..4000).map(|_| draw(&mut processor, &logits, &spec).unwrap()).collect();
            assert_eq!(drawn, kept, "temperature {temperature}, top_k {top_k:?}, top_p {top_p:?}");
        }
    }

    #[test]
    fn a_full_window_starts_again_with_its_later_half() {
        let mut window = Window::new(100, 4, &[]);
        let mut row: Vec<u32> = (0..3).collect();
        let mut fed = Vec::new();
        for token in 3..7 {
            let feed = window.next(std::slice::from_ref(&row));
            fed.push((feed.start, feed.ids));
            row.push(token);
        }
        let expected = [(0, vec![0, 1, 2]), (3, vec![3]), (0, vec![3, 4]), (2, vec![5])];
        assert_eq!(fed, expected);
    }

    #[test]
    fn a_prompt_beyond_the_context_loses_its_front() {
        let feed = Window::new(100, 4, &[]).next(&[(0..9).collect(), (10..19).collect()]);
        assert_eq!(feed, TokenFeed { ids: vec![7, 8, 17, 18], batch: 2, start: 0, capacity: 4 });
    }

    #[test]
    fn a_window_that_starts_again_begins_with_the_prefix() {
        let mut window = Window::new(100, 5, &[9]);
        let mut row = vec![9, 0, 1, 2];
        let mut fed = Vec::new();
        for token in 3..7 {
            let feed = window.next(std::slice::from_ref(&row));
            fed.push((feed.start, feed.ids));
            row.push(token);
        }
        assert_eq!(fed, [(0, vec![9, 0, 1, 2]), (4, vec![3]), (0, vec![9, 3, 4]), (3, vec![5])]);
        assert_eq!(Window::new(100, 1, &[9]).next(&[vec![9, 0]]).ids, [0], "no room for the prefix");
    }

    /// Against Python's `tokenizers`: see `tests/golden/continuations.py`.
    #[test]
    fn text_follows_a_prompt_as_in_python() {
        let structures = include_str!("../../../../tests/fixtures/tokenizer/structures.json");
        let structures: Value = serde_json::from_str(structures).unwrap();
        let expected: Value =
            serde_json::from_str(include_str!("../../../../tests/golden/continuations.json")).unwrap();
        let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        let mut compared = 0;
        for structure in structures["structures"].as_array().unwrap() {
            let name = structure["name"].as_str().unwrap();
            let Some(continuations) = expected[name].as_array() else { continue };
            std::fs::write(&path, structure["tokenizer"].to_string()).unwrap();
            let tokenizer = runner_data::load_tokenizer(&Tokenizer::File(path.clone())).unwrap();
            for continuation in continuations {
                let prompt = ids(&structure["prompts"][continuation["prompt"].as_u64().unwrap() as usize]);
                let (tokens, text) = (ids(&continuation["tokens"]), continuation["text"].as_str().unwrap());
                let what = format!("{name}, {continuation}");
                assert_eq!(text_after(&tokenizer, &prompt, &tokens), text, "{what}");
                compared += 1;
            }
        }
        assert_eq!(compared, 194);
    }
}
