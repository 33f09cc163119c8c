//! Continuations of prompts, with a key-value cache: each new token costs one pass over the cache.

use candle_transformers::generation::{LogitsProcessor, Sampling};

use super::EvalError;
use crate::data::TextTokenizer;
use crate::model::{KvCache, Model, Params};
use crate::plan::program::Samples;

/// One continuation of one prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Continuation {
    pub prompt: String,
    pub index: usize,
    /// What follows the prompt, up to the end-of-text token.
    pub text: String,
    pub tokens: usize,
}

/// Generates `spec.count` continuations of each prompt. Continuation i of prompt p draws from its own generator, seeded with
/// `spec.seed` + p·count + i.
///
/// # Errors
/// If a prompt cannot be encoded.
pub fn generate(
    model: &Model,
    params: &Params,
    tokenizer: &TextTokenizer,
    spec: &Samples,
) -> Result<Vec<Continuation>, EvalError> {
    let mut all = Vec::new();
    for (p, prompt) in spec.prompts.iter().enumerate() {
        let seed = spec.seed.wrapping_add((p * spec.count) as u64);
        all.extend(continuations(model, params, tokenizer, spec, prompt, seed)?);
    }
    Ok(all)
}

fn sampling(spec: &Samples) -> Sampling {
    let temperature = spec.temperature;
    match (spec.top_k, spec.top_p) {
        _ if temperature == 0.0 => Sampling::ArgMax,
        (Some(k), Some(p)) => Sampling::TopKThenTopP { k, p, temperature },
        (Some(k), None) => Sampling::TopK { k, temperature },
        (None, Some(p)) => Sampling::TopP { p, temperature },
        (None, None) => Sampling::All { temperature },
    }
}

/// All continuations of one prompt, side by side in one batch.
fn continuations(
    model: &Model,
    params: &Params,
    tokenizer: &TextTokenizer,
    spec: &Samples,
    prompt: &str,
    seed: u64,
) -> Result<Vec<Continuation>, EvalError> {
    let mut start = tokenizer.encode(prompt)?;
    if start.is_empty() {
        // A document starts behind an end-of-text token; where there is none, any token must do.
        start.push(tokenizer.eot().unwrap_or(0));
    }
    let batch = spec.count;
    if batch == 0 || spec.max_tokens == 0 {
        return Ok(Vec::new());
    }
    let vocab = tokenizer.vocab_size().min(model.spec.vocab_size);
    let mut processors: Vec<LogitsProcessor> =
        (0..batch).map(|i| LogitsProcessor::from_sampling(seed.wrapping_add(i as u64), sampling(spec))).collect();
    let mut rows: Vec<Vec<u32>> = vec![start.clone(); batch];
    let mut ended = vec![false; batch];
    let mut window = Window::new(model, params, batch, start.len().saturating_add(spec.max_tokens))?;
    let mut logits = window.feed(model, params, &rows)?;
    for n in 0..spec.max_tokens {
        for (row, processor) in processors.iter_mut().enumerate() {
            // Rows of a padded vocabulary are no tokens.
            let token = processor.sample(&logits.get(row)?.narrow(0, 0, vocab)?)?;
            ended[row] |= Some(token) == tokenizer.eot();
            rows[row].push(token);
        }
        if ended.iter().all(|&e| e) || n + 1 == spec.max_tokens {
            break;
        }
        logits = window.feed(model, params, &rows)?;
    }
    let continuation = |(index, row): (usize, &Vec<u32>)| {
        let new: Vec<u32> = row[start.len()..].iter().copied().take_while(|&t| Some(t) != tokenizer.eot()).collect();
        Continuation { prompt: prompt.to_owned(), index, text: tokenizer.decode(&new), tokens: new.len() }
    };
    Ok(rows.iter().enumerate().map(continuation).collect())
}

/// The part of the rows that the model still sees. When the context is full, the window starts again with its later half,
/// so long texts cost a constant number of passes per token.
struct Window {
    cache: KvCache,
    /// Tokens of each row that were fed or skipped.
    fed: usize,
}

impl Window {
    fn new(model: &Model, params: &Params, batch: usize, tokens: usize) -> Result<Self, EvalError> {
        let capacity = tokens.min(model.spec.context_length);
        Ok(Self { cache: model.cache(batch, capacity, &params.flat)?, fed: 0 })
    }

    /// Feeds what is new in `rows`, which are of equal length. Returns the logits behind the last tokens.
    fn feed(&mut self, model: &Model, params: &Params, rows: &[Vec<u32>]) -> Result<candle_core::Tensor, EvalError> {
        let length = rows.first().map_or(0, Vec::len);
        if self.cache.length + (length - self.fed) > self.cache.capacity {
            self.cache.length = 0;
            self.fed = length - (self.cache.capacity / 2).max(1).min(length);
        }
        let ids: Vec<u32> = rows.iter().flat_map(|r| &r[self.fed..]).copied().collect();
        self.fed = length;
        Ok(model.extend(params, &ids, &mut self.cache)?)
    }
}
