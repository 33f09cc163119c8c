//! Warns of text that its tokenizer was not made for. A loss over tokens that all stand for unknown text is low, and says nothing.

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
