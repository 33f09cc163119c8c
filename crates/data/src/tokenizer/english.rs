//! Words as torchtext's `basic_english` tokenizer splits them, numbered by how often they are in the training source.
//!
//! Text is lowercased; `"` goes; `'`, `.`, `,`, `(`, `)`, `!` and `?` are words of their own; `;`, `:` and `<br />` separate
//! words as white space does. Line ends are white space: the words of all lines follow one another.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

/// What every word is that the vocabulary has not.
pub(super) const UNKNOWN: &str = "<unk>";
/// Bytes of a word; longer ones are unknown.
pub(super) const MAX_WORD: usize = 1024;

/// A vocabulary of words.
#[derive(Debug)]
pub(super) struct English {
    lowercase: bool,
    /// By id: unknown, special tokens, words.
    tokens: Vec<Box<str>>,
    /// How many special tokens there are, `<unk>` among them.
    special: usize,
    /// Of the words.
    ids: HashMap<Box<str>, u32>,
}

/// As it is kept.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    pub(super) lowercase: bool,
    pub(super) special_tokens: Vec<String>,
    pub(super) words: Vec<String>,
}

impl TryFrom<Written> for English {
    type Error = String;

    fn try_from(from: Written) -> Result<Self, String> {
        let Written { lowercase, special_tokens, words } = from;
        let special = 1 + special_tokens.len();
        let mut tokens: Vec<Box<str>> = vec![UNKNOWN.into()];
        tokens.extend(special_tokens.into_iter().map(String::into_boxed_str));
        let distinct: HashSet<&str> = tokens.iter().map(AsRef::as_ref).collect();
        if distinct.len() < tokens.len() {
            return Err("a special token is named twice".to_owned());
        }
        tokens.extend(words.into_iter().map(String::into_boxed_str));
        let words = tokens.iter().zip(0..).skip(special);
        let ids: HashMap<Box<str>, u32> = words.map(|(word, id)| (word.clone(), id)).collect();
        if ids.len() + special < tokens.len() {
            return Err("a word is named twice".to_owned());
        }
        Ok(Self { lowercase, tokens, special, ids })
    }
}

impl English {
    /// The words of `counts` that are there at least `min_count` times, the most frequent first, those that are equally
    /// frequent in the order of their characters.
    ///
    /// # Errors
    /// If a special token is named twice.
    pub(super) fn new(
        counts: HashMap<String, u64>,
        lowercase: bool,
        min_count: u64,
        special: &[String],
    ) -> Result<Self, String> {
        let named = |word: &str| word == UNKNOWN || special.iter().any(|s| s == word);
        let mut words: Vec<(u64, String)> = counts.into_iter().map(|(word, count)| (count, word)).collect();
        words.retain(|(count, word)| *count >= min_count && !named(word));
        words.sort_unstable_by(|(a, x), (b, y)| b.cmp(a).then_with(|| x.cmp(y)));
        let words = words.into_iter().map(|(_, word)| word).collect();
        Self::try_from(Written { lowercase, special_tokens: special.to_vec(), words })
    }

    /// What `from_json` reads.
    pub(super) fn to_json(&self) -> String {
        let written = Written {
            lowercase: self.lowercase,
            special_tokens: self.tokens[1..self.special].iter().map(|t| t.clone().into_string()).collect(),
            words: self.tokens[self.special..].iter().map(|t| t.clone().into_string()).collect(),
        };
        serde_json::to_string(&written).unwrap_or_default()
    }

    /// # Errors
    /// If `json` is not a vocabulary.
    pub(super) fn from_json(json: &str) -> Result<Self, String> {
        let written: Written = serde_json::from_str(json).map_err(|error| error.to_string())?;
        Self::try_from(written)
    }

    pub(super) fn size(&self) -> usize {
        self.tokens.len()
    }

    /// `<unk>` and the special tokens, by id.
    pub(super) fn special(&self) -> Vec<(String, u32)> {
        self.tokens[..self.special].iter().map(|t| t.clone().into_string()).zip(0..).collect()
    }

    /// Appends the ids of the words of `text`. What looks like a special token is a word like others, and so unknown.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        split(text, self.lowercase, |word| out.push(self.ids.get(word).copied().unwrap_or(0)));
    }

    /// The words with a blank between them; ids beyond the vocabulary are passed over.
    pub(super) fn decode(&self, ids: &[u32]) -> String {
        let words: Vec<&str> = ids.iter().filter_map(|&id| self.tokens.get(id as usize)).map(AsRef::as_ref).collect();
        words.join(" ")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    /// White space, and what becomes it.
    Blank,
    /// A word of its own.
    Word,
    Gone,
    /// Where `<br />` may begin.
    Break,
    /// The beginning of a character beyond ASCII.
    Wide,
}

const CLASSES: [Class; 256] = {
    let mut classes = [Class::Letter; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = match byte as u8 {
            // As Python has it: the four separators of ASCII are white space, too.
            b'\t'..=b'\r' | 0x1c..=0x1f | b' ' | b';' | b':' => Class::Blank,
            b'\'' | b'.' | b',' | b'(' | b')' | b'!' | b'?' => Class::Word,
            b'"' => Class::Gone,
            b'<' => Class::Break,
            0x80.. => Class::Wide,
            _ => Class::Letter,
        };
        byte += 1;
    }
    classes
};

/// Hands the words of `text` to `word`, in order.
pub(super) fn split(text: &str, lowercase: bool, mut word: impl FnMut(&str)) {
    let lowered;
    let text = if lowercase {
        // Whole, since how a final sigma is written depends on what is around it.
        lowered = text.to_lowercase();
        &lowered
    } else {
        text
    };
    let bytes = text.as_bytes();
    // What of a word lies before a `"`.
    let mut joined = String::new();
    let (mut start, mut at) = (0, 0);
    let flush = |joined: &mut String, rest: &str, word: &mut dyn FnMut(&str)| {
        if joined.is_empty() {
            if !rest.is_empty() {
                word(rest);
            }
        } else {
            joined.push_str(rest);
            word(joined);
            joined.clear();
        }
    };
    while let Some(&byte) = bytes.get(at) {
        let (taken, alone) = match CLASSES[byte as usize] {
            Class::Letter => {
                at += 1;
                continue;
            }
            Class::Gone => {
                joined.push_str(&text[start..at]);
                at += 1;
                start = at;
                continue;
            }
            Class::Blank => (1, false),
            Class::Word => (1, true),
            Class::Break => {
                let Some(length) = line_break(&bytes[at..]) else {
                    at += 1;
                    continue;
                };
                (length, false)
            }
            Class::Wide => {
                let character = text[at..].chars().next().unwrap_or_default();
                let length = character.len_utf8();
                if !character.is_whitespace() {
                    at += length;
                    continue;
                }
                (length, false)
            }
        };
        flush(&mut joined, &text[start..at], &mut word);
        if alone {
            word(&text[at..at + taken]);
        }
        at += taken;
        start = at;
    }
    flush(&mut joined, &text[start..], &mut word);
}

/// The length of a `<br />` at the beginning of `bytes`, whatever `"` are between its characters.
fn line_break(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    for &wanted in b"<br />" {
        while bytes.get(at) == Some(&b'"') {
            at += 1;
        }
        if bytes.get(at) != Some(&wanted) {
            return None;
        }
        at += 1;
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::super::words::Cut;
    use super::*;

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

    /// The claim of `Cut::English`, on every text made of some tricky pieces.
    #[test]
    fn parts_give_the_words_of_the_whole() {
        let pieces = ["<br", "\"", " ", "/>", "\n", "Σ", "a.", "'", "\u{a0}", "R", "\u{1c}"];
        let mut cuts = 0;
        for number in 0..pieces.len().pow(5) {
            let digits = (0..5).map(|i| number / pieces.len().pow(i) % pieces.len());
            let text: String = digits.map(|d| pieces[d]).collect();
            let Some(at) = Cut::English.last(&text, 0) else { continue };
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
        let all = English::new(counts.clone(), true, 1, &special).unwrap();
        assert_eq!(all.decode(&(0..20).collect::<Vec<_>>()), "<unk> [EOT] . a b [eot] c d z");
        let some = English::new(counts, true, 2, &[]).unwrap();
        let mut ids = Vec::new();
        some.encode("A, b. <unk> c\n", &mut ids);
        assert_eq!((ids.as_slice(), some.size()), ([2, 0, 3, 1, 0, 0].as_slice(), 4));
        let again = English::from_json(&all.to_json()).unwrap();
        assert_eq!((again.to_json(), again.special()), (all.to_json(), all.special()));
        for wrong in ["", "{}", "[]", r#"{"lowercase": true, "special_tokens": [], "words": ["a", "a"]}"#] {
            assert!(English::from_json(wrong).is_err());
        }
        assert!(English::new(HashMap::new(), true, 1, &["<unk>".to_owned()]).is_err());
    }
}
