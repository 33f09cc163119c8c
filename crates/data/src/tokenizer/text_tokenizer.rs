//! The tokenizer as the rest of the program sees it.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use super::english::English;
use super::library::{END_OF_TEXT, Library};
use super::stored;
use super::words::Cut;
use crate::error::DataError;
use crate::fingerprint::hash_parts;

/// Names that tokenizers give the token between documents, the first that exists counts.
const END_NAMES: [&str; 8] = [END_OF_TEXT, "<|end_of_text|>", "[EOT]", "<eot>", "</s>", "<eos>", "[EOS]", "<|im_end|>"];
/// In `chars`' table: no such character.
const UNKNOWN: u32 = u32::MAX;

/// Turns text into token ids and back. Cheap to clone.
#[derive(Clone)]
pub struct TextTokenizer(Arc<Inner>);

struct Inner {
    kind: Kind,
    vocab_size: usize,
    end: Option<u32>,
    special: Vec<(String, u32)>,
    vocabulary: HashMap<String, u32>,
    hash: String,
}

enum Kind {
    Library(Box<Library>),
    Chars {
        /// By id.
        characters: Vec<char>,
        /// By code point.
        ids: Vec<u32>,
    },
    /// The 256 bytes, then end of text.
    Bytes,
    Words(Box<English>),
}

impl fmt::Debug for TextTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextTokenizer").field("vocab_size", &self.0.vocab_size).field("hash", &self.0.hash).finish()
    }
}

impl TextTokenizer {
    pub(super) fn library(library: Library, hash: String) -> Self {
        let special = library.special_tokens();
        let vocabulary = library.vocabulary();
        // Ids may have gaps: the size is what a model needs, not the count.
        let vocab_size = vocabulary.values().max().map_or(0, |&id| id as usize + 1);
        let end = END_NAMES.iter().find_map(|&name| vocabulary.get(name).copied());
        Self(Arc::new(Inner { kind: Kind::Library(Box::new(library)), vocab_size, end, special, vocabulary, hash }))
    }

    pub(super) fn chars(characters: &BTreeSet<char>, hash: String) -> Self {
        let size = characters.last().map_or(0, |&last| last as usize + 1);
        let mut ids = vec![UNKNOWN; size];
        for (id, &character) in (0..).zip(characters) {
            ids[character as usize] = id;
        }
        let characters: Vec<_> = characters.iter().copied().collect();
        let vocab_size = characters.len();
        Self::without_special(Kind::Chars { characters, ids }, vocab_size, hash)
    }

    pub fn bytes() -> Self {
        let special = vec![(END_OF_TEXT.to_owned(), 256)];
        let vocabulary = special.iter().cloned().collect();
        Self(Arc::new(Inner {
            kind: Kind::Bytes,
            vocab_size: 257,
            end: Some(256),
            special,
            vocabulary,
            hash: blake3::hash(b"bytes").to_hex().to_string(),
        }))
    }

    /// A vocabulary of words; its hash is that of its content.
    pub(super) fn english(english: English) -> Self {
        let special = english.special();
        let vocabulary: HashMap<String, u32> = special.iter().cloned().collect();
        let end = END_NAMES.iter().find_map(|&name| vocabulary.get(name).copied());
        let hash = hash_parts(["words", &english.to_json()]);
        let vocab_size = english.size();
        Self(Arc::new(Inner { kind: Kind::Words(Box::new(english)), vocab_size, end, special, vocabulary, hash }))
    }

    fn without_special(kind: Kind, vocab_size: usize, hash: String) -> Self {
        Self(Arc::new(Inner { kind, vocab_size, end: None, special: Vec::new(), vocabulary: HashMap::new(), hash }))
    }

    /// What it is, and the text that it can be made from again.
    pub(super) fn parts(&self) -> Result<(stored::Kind, String), String> {
        Ok(match &self.0.kind {
            Kind::Library(library) => (stored::Kind::Library, library.to_json()?),
            Kind::Chars { characters, .. } => (stored::Kind::Chars, characters.iter().collect()),
            Kind::Bytes => (stored::Kind::Bytes, String::new()),
            Kind::Words(english) => (stored::Kind::Words, english.to_json()),
        })
    }

    /// The tokens of a prompt. Special tokens written out in it, such as `<|endoftext|>`, are those tokens.
    ///
    /// # Errors
    /// If the tokenizer has no token for a character.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let mut out = Vec::new();
        let mut rest = text;
        loop {
            // The leftmost special token, the longest of those that start there.
            let found = self.0.special.iter().filter(|(name, _)| !name.is_empty());
            let found = found.filter_map(|(name, id)| rest.find(name.as_str()).map(|at| (at, name.len(), *id)));
            let Some((at, length, id)) = found.min_by_key(|&(at, length, _)| (at, usize::MAX - length)) else {
                break;
            };
            self.encode_ordinary(&rest[..at], &mut out)?;
            out.push(id);
            rest = &rest[at + length..];
        }
        self.encode_ordinary(rest, &mut out)?;
        Ok(out)
    }

    /// The tokens of a document; what looks like a special token in it is text.
    ///
    /// # Errors
    /// If the tokenizer has no token for a character.
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let mut out = Vec::new();
        self.encode_ordinary(text, &mut out)?;
        Ok(out)
    }

    /// Appends the tokens of a document to `out`; what looks like a special token in it is text.
    pub fn encode_ordinary(&self, text: &str, out: &mut Vec<u32>) -> Result<(), DataError> {
        match &self.0.kind {
            Kind::Library(library) => {
                library.encode(text, out).map_err(|message| DataError::Encode { context: excerpt(text), message })
            }
            Kind::Chars { characters, ids } => {
                out.reserve(text.len());
                for character in text.chars() {
                    let id = ids.get(character as usize).copied().filter(|&id| id != UNKNOWN);
                    out.push(id.ok_or_else(|| DataError::UnknownCharacter {
                        context: excerpt(text),
                        character,
                        known: characters.len(),
                    })?);
                }
                Ok(())
            }
            Kind::Bytes => {
                out.extend(text.bytes().map(u32::from));
                Ok(())
            }
            Kind::Words(english) => {
                english.encode(text, out);
                Ok(())
            }
        }
    }

    /// The text of `ids`. Bytes that are no UTF-8 become replacement characters; ids beyond the vocabulary are passed
    /// over, as a model's vocabulary may be rounded up.
    pub fn decode(&self, ids: &[u32]) -> String {
        match &self.0.kind {
            Kind::Library(library) => library.decode(ids),
            Kind::Words(english) => english.decode(ids),
            Kind::Chars { characters, .. } => ids.iter().filter_map(|&id| characters.get(id as usize)).collect(),
            Kind::Bytes => {
                let mut text = String::new();
                let mut bytes = Vec::new();
                for &id in ids {
                    if let Ok(byte) = u8::try_from(id) {
                        bytes.push(byte);
                    } else if id == 256 {
                        text.push_str(&String::from_utf8_lossy(&bytes));
                        text.push_str(END_OF_TEXT);
                        bytes.clear();
                    }
                }
                text + &String::from_utf8_lossy(&bytes)
            }
        }
    }

    /// The characters by their ids, where each is a token.
    pub fn characters(&self) -> Option<&[char]> {
        match &self.0.kind {
            Kind::Chars { characters, .. } => Some(characters),
            _ => None,
        }
    }

    /// The highest id a text can have, plus one.
    pub fn vocab_size(&self) -> usize {
        self.0.vocab_size
    }

    /// The token that separates documents, where there is one.
    pub fn eot(&self) -> Option<u32> {
        self.0.end
    }

    /// What the token `id` is called.
    pub(super) fn name_of(&self, id: u32) -> Option<String> {
        self.0.vocabulary.iter().find(|(_, other)| **other == id).map(|(name, _)| name.clone())
    }

    /// Content hash, hex.
    pub fn hash(&self) -> &str {
        &self.0.hash
    }

    /// Where documents may be cut.
    pub fn cut(&self) -> Cut {
        match &self.0.kind {
            Kind::Library(library) => library.cut,
            Kind::Chars { .. } | Kind::Bytes => Cut::Anywhere,
            Kind::Words(_) => Cut::English,
        }
    }

    /// The id of the token `name`, or a message with the names nearest to it.
    pub fn named(&self, name: &str) -> Result<u32, String> {
        if let Some(&id) = self.0.vocabulary.get(name) {
            return Ok(id);
        }
        let mut special: Vec<&str> = self.0.special.iter().map(|(name, _)| name.as_str()).collect();
        if special.is_empty() {
            return Err(format!("the tokenizer has no token {name:?}, and no special tokens at all"));
        }
        special.sort_by(|a, b| strsim::jaro_winkler(b, name).total_cmp(&strsim::jaro_winkler(a, name)));
        special.truncate(8);
        Err(format!("the tokenizer has no token {name:?}; its special tokens are {}", special.join(", ")))
    }
}

/// The start of a text, to say which it was.
fn excerpt(text: &str) -> String {
    let start: String = text.chars().take(40).collect();
    format!("{start:?}{}", if start.len() < text.len() { " …" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_numbered_in_order() {
        let tokenizer = TextTokenizer::chars(&"hello\n日".chars().collect(), "h".into());
        assert_eq!(tokenizer.vocab_size(), 6);
        let ids = tokenizer.encode("hé".get(..1).unwrap()).unwrap();
        assert_eq!((ids.as_slice(), tokenizer.decode(&[0, 2, 5, 99])), ([2].as_slice(), "\nh日".into()));
        let error = tokenizer.encode("help").unwrap_err().to_string();
        assert_eq!(error, "\"help\": 'p' (U+0070) is not among the 6 characters of the training source");
        assert!(tokenizer.named("[BOT]").unwrap_err().contains("no special tokens"));
    }

    #[test]
    fn bytes_have_an_end_of_text() {
        let tokenizer = TextTokenizer::bytes();
        assert_eq!(tokenizer.encode("é<|endoftext|>a").unwrap(), [0xc3, 0xa9, 256, 97]);
        assert_eq!(tokenizer.decode(&[0xc3, 0xa9, 256, 97, 300, 0xff]), "é<|endoftext|>a\u{fffd}");
        let mut ordinary = Vec::new();
        tokenizer.encode_ordinary(END_OF_TEXT, &mut ordinary).unwrap();
        assert_eq!(ordinary.len(), END_OF_TEXT.len());
        assert!(tokenizer.named("<|end|>").unwrap_err().contains("special tokens are <|endoftext|>"));
    }
}
