//! The text that evaluated rows stand for: its identity, whatever the tokenizer, and its bytes.

use std::ops::Range;

use super::error::Result;
use super::hashing::hash_parts;
use super::prepare::{Preparation, SourceTokens};
use super::split::Split;
use super::tokenizer::TextTokenizer;
use runner_spec::data::{Rows, SplitText};
use runner_spec::experiment::Layout;

impl Preparation<'_> {
    /// The text of `split`, which is made of the tokens `range` and has the hash `hash`: the whole source or its last `fraction`.
    pub(super) fn describe_text(
        &self,
        tokens: &SourceTokens,
        tokenizer: &TextTokenizer,
        range: &Range<u64>,
        split: &Split,
        hash: &str,
        fraction: Option<f64>,
    ) -> Result<Option<SplitText>> {
        if !split.knows_text_bytes() {
            return Ok(None);
        }
        // A share of documents is a different part of the text from the same share of tokens.
        let is_padded = matches!(self.layout, Layout::Padded { .. });
        let is_cut_by_tokens = fraction.is_some() && !is_padded;
        let text_hash = match &tokens.text_hash {
            Some(source) => hash_parts(["text", source, &format!("{fraction:?} {is_padded}")]),
            None => self.hash_decoded(tokens, tokenizer, range)?,
        };
        let memo = hash_parts(["text bytes", hash]);
        if let Some(bytes) = self.cache.read_memo("scans", &memo) {
            return Ok(Some(SplitText { hash: text_hash, bytes, is_cut_by_tokens }));
        }
        let (mut bytes, mut rows) = (0, Rows::default());
        let rows_at_once = (1 << 16) / split.length().max(1) as u64 + 1;
        for start in (0..split.rows()).step_by(rows_at_once as usize) {
            split.fill(start..split.rows().min(start + rows_at_once), &mut rows)?;
            bytes += split.text_bytes(&rows).unwrap_or(0);
        }
        self.cache.write_memo("scans", &memo, &bytes);
        Ok(Some(SplitText { hash: text_hash, bytes, is_cut_by_tokens }))
    }

    /// The hash of the text that the tokens `range` of token shards stand for, without special tokens. It does not depend on the tokenizer.
    fn hash_decoded(&self, tokens: &SourceTokens, tokenizer: &TextTokenizer, range: &Range<u64>) -> Result<String> {
        let memo = hash_parts(["decoded text", &tokens.hash, tokenizer.hash(), &format!("{range:?}")]);
        self.cache.remember("scans", &memo, || {
            let texts = tokenizer.token_texts().unwrap_or_default();
            let (mut hasher, mut text) = (blake3::Hasher::new(), Vec::new());
            tokens.stream.read(range.start, range.end - range.start, |token| {
                text.extend(texts.get(token as usize).into_iter().flatten());
                if text.len() >= 1 << 16 {
                    hasher.update(&text);
                    text.clear();
                }
            })?;
            Ok(hasher.update(&text).finalize().to_hex().to_string())
        })
    }
}
