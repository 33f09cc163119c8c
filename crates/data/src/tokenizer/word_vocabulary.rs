//! Words as torchtext's `basic_english` tokenizer splits them, numbered by their frequency in the training source.
//!
//! Text is lowercased; `"` is removed; `'`, `.`, `,`, `(`, `)`, `!` and `?` are separate words; `;`, `:` and `<br />` separate
//! words as white space does. Line ends are white space: the words of all lines follow one another.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use crate::choice::is_python_space;
use runner_spec::error::PlainError;
use serde::{Deserialize, Serialize};

/// The token of every word that is not in the vocabulary.
pub(super) const UNKNOWN: &str = "<unk>";
/// A longer word, in bytes, is unknown.
pub(super) const MAX_WORD_BYTES: usize = 1024;

/// A vocabulary of words. The id of `<unk>` is 0; special tokens follow, then words.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WordVocabulary {
    pub(super) lowercase: bool,
    special_tokens: Vec<String>,
    words: Vec<String>,
    /// The ids of the words.
    #[serde(skip)]
    ids: HashMap<String, u32>,
}

impl WordVocabulary {
    /// The words of `counts` that occur at least `min_count` times: the most frequent first, equally frequent ones in the order of
    /// their characters.
    ///
    /// # Errors
    /// If a special token is listed twice.
    pub(super) fn new(
        counts: HashMap<String, u64>,
        lowercase: bool,
        min_count: u64,
        special: &[String],
    ) -> Result<Self, PlainError> {
        let is_special = |word: &str| word == UNKNOWN || special.iter().any(|s| s == word);
        let mut words: Vec<(u64, String)> = counts.into_iter().map(|(word, count)| (count, word)).collect();
        words.retain(|(count, word)| *count >= min_count && !is_special(word));
        words.sort_unstable_by(|(a, x), (b, y)| b.cmp(a).then_with(|| x.cmp(y)));
        let words = words.into_iter().map(|(_, word)| word).collect();
        Self { lowercase, special_tokens: special.to_vec(), words, ids: HashMap::new() }.with_ids()
    }

    /// Reads the text that [`WordVocabulary::to_json`] writes.
    ///
    /// # Errors
    /// If `json` is not a vocabulary.
    pub(super) fn from_json(json: &str) -> Result<Self, PlainError> {
        serde_json::from_str::<Self>(json).map_err(|error| PlainError::request(error.to_string()))?.with_ids()
    }

    /// The text that [`WordVocabulary::from_json`] reads.
    #[expect(clippy::expect_used, reason = "strings have a form in JSON")]
    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings have a form in JSON")
    }

    fn with_ids(mut self) -> Result<Self, PlainError> {
        let special: HashSet<&str> = self.special_names().collect();
        if special.len() < 1 + self.special_tokens.len() {
            return Err(PlainError::request("a special token is listed twice"));
        }
        let first = special.len() as u32;
        self.ids = self.words.iter().cloned().zip(first..).collect();
        if self.ids.len() < self.words.len() {
            return Err(PlainError::request("a word is listed twice"));
        }
        Ok(self)
    }

    fn special_names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(UNKNOWN).chain(self.special_tokens.iter().map(String::as_str))
    }

    /// All tokens, by id.
    pub(super) fn tokens(&self) -> impl Iterator<Item = &str> {
        self.special_names().chain(self.words.iter().map(String::as_str))
    }

    pub(super) fn size(&self) -> usize {
        1 + self.special_tokens.len() + self.words.len()
    }

    /// `<unk>` and the special tokens, by id.
    pub(super) fn special(&self) -> Vec<(String, u32)> {
        self.special_names().map(str::to_owned).zip(0..).collect()
    }

    /// Appends the ids of the words of `text`. A word that looks like a special token is unknown.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        split(text, self.lowercase, |word| out.push(self.ids.get(word).copied().unwrap_or(0)));
    }

    /// The words with a blank between them. Ids beyond the vocabulary are skipped.
    pub(super) fn decode(&self, ids: &[u32]) -> String {
        let first_word = 1 + self.special_tokens.len();
        let token = |&id: &u32| match (id as usize).checked_sub(first_word) {
            Some(index) => self.words.get(index).map(String::as_str),
            None => self.special_names().nth(id as usize),
        };
        ids.iter().filter_map(token).collect::<Vec<_>>().join(" ")
    }
}

/// Hands the words of `text` to `word`, in order.
pub(super) fn split(text: &str, lowercase: bool, mut word: impl FnMut(&str)) {
    // The form of a sigma depends on the characters around it, so the whole text is lowered at once.
    let text = if lowercase { Cow::Owned(text.to_lowercase()) } else { Cow::Borrowed(text) };
    // A `<br />` may have `"` between its characters.
    let text = text.replace('"', "").replace("<br />", " ");
    for mut rest in text.split(|c: char| is_python_space(c) || matches!(c, ';' | ':')) {
        while let Some(at) = rest.find(['\'', '.', ',', '(', ')', '!', '?']) {
            if at > 0 {
                word(&rest[..at]);
            }
            word(&rest[at..=at]);
            rest = &rest[at + 1..];
        }
        if !rest.is_empty() {
            word(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cut_points::CutPoints;

    fn words(text: &str, lowercase: bool) -> Vec<String> {
        let mut words = Vec::new();
        split(text, lowercase, |word| words.push(word.to_owned()));
        words
    }

    /// Against a Python reimplementation: see `tests/golden/words.py`.
    #[test]
    fn words_are_those_of_basic_english() {
        #[derive(Deserialize)]
        struct Case {
            text: String,
            lower: Vec<String>,
            cased: Vec<String>,
        }
        let cases: Vec<Case> = serde_json::from_str(include_str!("../../../../tests/golden/words.json")).unwrap();
        assert!(cases.len() > 300);
        for case in cases {
            assert_eq!(words(&case.text, true), case.lower, "{:?}", case.text);
            assert_eq!(words(&case.text, false), case.cased, "{:?}", case.text);
        }
    }

    /// The claim of `CutPoints::EnglishWords`, on every text made of some tricky pieces.
    #[test]
    fn parts_give_the_words_of_the_whole() {
        let pieces = ["<br", "\"", " ", "/>", "\n", "Σ", "a.", "'", "\u{a0}", "R", "\u{1c}"];
        let mut cuts = 0;
        for number in 0..pieces.len().pow(5) {
            let digits = (0..5).map(|i| number / pieces.len().pow(i) % pieces.len());
            let text: String = digits.map(|d| pieces[d]).collect();
            let Some(at) = CutPoints::EnglishWords.last_in(&text, 0) else { continue };
            cuts += 1;
            let parts = [words(&text[..at], true), words(&text[at..], true)].concat();
            assert_eq!(parts, words(&text, true), "{text:?} cut at {at}");
        }
        assert!(cuts > 10_000, "{cuts}");
    }

    #[test]
    fn the_vocabulary_is_ordered_by_count_then_by_name() {
        let mut counts = HashMap::new();
        split("b a c. a <unk> b [EOT] d . z", true, |word| *counts.entry(word.to_owned()).or_insert(0) += 1);
        let special = ["[EOT]".to_owned()];
        let all = WordVocabulary::new(counts.clone(), true, 1, &special).unwrap();
        assert_eq!(all.decode(&(0..20).collect::<Vec<_>>()), "<unk> [EOT] . a b [eot] c d z");
        let some = WordVocabulary::new(counts, true, 2, &[]).unwrap();
        let mut ids = Vec::new();
        some.encode("A, b. <unk> c\n", &mut ids);
        assert_eq!((ids.as_slice(), some.size()), ([2, 0, 3, 1, 0, 0].as_slice(), 4));
        let again = WordVocabulary::from_json(&all.to_json()).unwrap();
        assert_eq!((again.to_json(), again.special()), (all.to_json(), all.special()));
        for wrong in ["", "{}", "[]", r#"{"lowercase": true, "special_tokens": [], "words": ["a", "a"]}"#] {
            assert!(WordVocabulary::from_json(wrong).is_err());
        }
        assert!(WordVocabulary::new(HashMap::new(), true, 1, &["<unk>".to_owned()]).is_err());
    }
}
