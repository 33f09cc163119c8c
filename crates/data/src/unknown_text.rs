//! Warns of text that its tokenizer was not made for. A loss over tokens that all stand for unknown text is low, and says nothing.

use serde::{Deserialize, Serialize};

use super::hashing::hash_parts;
use super::tokenizer::TextTokenizer;
use runner_spec::format::{counted, percent};

/// Reading this many tokens takes a few milliseconds.
pub(super) const TOKENS_READ: u64 = 1 << 20;

/// A larger share of unknown tokens gets a warning. Vocabularies of words lack a few percent of the words in new text.
const TOLERATED: f64 = 0.1;

/// Counts tokens of unknown text.
pub(super) struct UnknownTokens {
    token: u32,
    name: String,
    count: u64,
    total: u64,
}

impl UnknownTokens {
    /// `None` if `tokenizer` has no token for unknown text.
    pub(super) fn new(tokenizer: &TextTokenizer) -> Option<Self> {
        tokenizer.unknown().map(|(token, name)| Self { token, name, count: 0, total: 0 })
    }

    pub(super) fn add(&mut self, token: u32) {
        self.count += u64::from(token == self.token);
        self.total += 1;
    }

    /// The warning about the tokens of `what`, if too many of them are unknown.
    pub(super) fn warning(&self, what: &str) -> Option<String> {
        let share = self.count as f64 / self.total.max(1) as f64;
        (share > TOLERATED).then(|| {
            format!(
                "{what}: {} of {} are `{}`, which stands for text that the tokenizer does not know; use a tokenizer that was made for such text",
                percent(share),
                counted(self.total, "token"),
                self.name
            )
        })
    }
}

/// Counts characters that no token stands for, in the beginning of a source.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct LeftOutText {
    left_out: u64,
    total: u64,
}

impl LeftOutText {
    /// Characters that are looked at.
    const ENOUGH: u64 = 1 << 16;
    /// A larger share gets a warning.
    const TOLERATED: f64 = 0.01;

    /// The name under which the cache keeps the counts of the source with the hash `source`.
    pub(super) fn memo(source: &str, tokenizer: &TextTokenizer) -> String {
        hash_parts(["left out", source, tokenizer.hash()])
    }

    pub(super) fn add(&mut self, text: &str, tokenizer: &TextTokenizer) {
        if self.total < Self::ENOUGH {
            let start = &text[..text.floor_char_boundary(Self::ENOUGH as usize)];
            let (left_out, of) = tokenizer.left_out(start).unwrap_or_default();
            (self.left_out, self.total) = (self.left_out + left_out, self.total + of);
        }
    }

    /// The warning about the text `what`, if much of it is left out.
    pub(super) fn warning(&self, what: &str) -> Option<String> {
        let share = self.left_out as f64 / self.total.max(1) as f64;
        (share > Self::TOLERATED).then(|| {
            format!(
                "{what}: the tokenizer has no token for {} of the first {}, and leaves them out; use a tokenizer that was made for such text",
                percent(share),
                counted(self.total, "character"),
            )
        })
    }
}
