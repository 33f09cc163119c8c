//! The tokenizer that the rest of the program uses.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use super::folder_tokens::FolderTokens;
use super::gpt2_folder::END_OF_TEXT;
use super::library::LibraryTokenizer;
use super::token_ids;
use super::word_vocabulary::{UNKNOWN, WordVocabulary};
use crate::cut_points::CutPoints;
use crate::error::{DataError, Result};
use crate::hashing::hash_parts;
use runner_spec::error::PlainError;
use runner_spec::experiment::Layout;

/// Names that tokenizers give the token between documents. The first that is a special token counts; if none is, the end that the
/// tokenizer's folder names; if it names none, the first that is an ordinary token.
const END_NAMES: [&str; 8] = [END_OF_TEXT, "<|end_of_text|>", "[EOT]", "<eot>", "</s>", "<eos>", "[EOS]", "<|im_end|>"];
/// The id of a character that is not in the vocabulary.
const UNKNOWN_CHARACTER: u32 = u32::MAX;
/// The advice for a text with a character that the tokenizer does not know.
const UNKNOWN_CHARACTER_ADVICE: &str = "remove it, or choose a tokenizer that knows all characters, such as bytes";

/// Turns text into token ids and back. Cheap to clone.
#[derive(Clone)]
pub struct TextTokenizer(Arc<Inner>);

struct Inner {
    encoder: Encoder,
    vocab_size: usize,
    end_of_text: Option<u32>,
    /// Special tokens, by id.
    special: Vec<(String, u32)>,
    /// Tokens with a name: all of a library's, the special ones of the others.
    named: HashMap<String, u32>,
    /// The tokens that the tokenizer's folder names.
    folder: FolderTokens,
    hash: String,
}

pub(super) enum Encoder {
    Library(Box<LibraryTokenizer>),
    Chars {
        /// By id.
        characters: Vec<char>,
        /// By code point.
        ids: Vec<u32>,
    },
    /// The 256 bytes, then end of text.
    Bytes,
    Words(Box<WordVocabulary>),
    /// Ids of a vocabulary of this size, without text.
    Ids(usize),
}

impl fmt::Debug for TextTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextTokenizer").field("vocab_size", &self.0.vocab_size).field("hash", &self.0.hash).finish()
    }
}

impl TextTokenizer {
    fn new(encoder: Encoder, folder: FolderTokens, hash: String) -> Self {
        let (special, vocab_size) = match &encoder {
            Encoder::Library(library) => (library.special_tokens(), None),
            Encoder::Chars { characters, .. } => (Vec::new(), Some(characters.len())),
            Encoder::Bytes => (vec![(END_OF_TEXT.to_owned(), 256)], Some(257)),
            Encoder::Words(words) => (words.special(), Some(words.size())),
            Encoder::Ids(size) => (Vec::new(), Some(*size)),
        };
        let named: HashMap<String, u32> = match &encoder {
            Encoder::Library(library) => library.vocabulary(),
            _ => special.iter().cloned().collect(),
        };
        // The ids of a library may have gaps; a model has a row for the highest one.
        let vocab_size = vocab_size.unwrap_or_else(|| named.values().max().map_or(0, |&id| id as usize + 1));
        let end_of_text = end_of_text(&special, &folder, |name| named.contains_key(name));
        let end_of_text = end_of_text.and_then(|name| named.get(name).copied());
        Self(Arc::new(Inner { encoder, vocab_size, end_of_text, special, named, folder, hash }))
    }

    /// A tokenizer of the `tokenizers` crate with its content hash, and the tokens that its folder names.
    pub(super) fn library(library: LibraryTokenizer, folder: FolderTokens, hash: String) -> Self {
        Self::new(Encoder::Library(Box::new(library)), folder, hash)
    }

    /// [`library`](Self::library) for a tokenizer whose files have the content hash `files`. If the folder decides which token separates
    /// documents, the tokenizer's hash is a different one, because the same text has different tokens.
    pub(super) fn from_folder(library: LibraryTokenizer, folder: FolderTokens, files: String) -> Self {
        let special = library.special_tokens();
        let end = |folder| end_of_text(&special, folder, |name| library.token_id(name).is_some());
        let unnamed = FolderTokens::default();
        let hash = match end(&folder) {
            Some(name) if end(&unnamed) != Some(name) => hash_with_end(&files, name),
            _ => files,
        };
        Self::library(library, folder, hash)
    }

    /// True if a file with this content holds this tokenizer: it was read from it, or is written like that in records.
    pub(crate) fn is_content(&self, content: &[u8]) -> bool {
        let files = blake3::hash(content).to_hex();
        let with_end = || self.folder().eos.as_ref().is_some_and(|eos| hash_with_end(&files, eos) == self.hash());
        let is_written = || match self.encoder() {
            Encoder::Library(library) => library.to_json().is_ok_and(|json| json.as_bytes() == content),
            _ => false,
        };
        files.as_str() == self.hash() || with_end() || is_written()
    }

    /// The tokens that the tokenizer's folder names.
    pub(super) fn folder(&self) -> &FolderTokens {
        &self.0.folder
    }

    pub(super) fn chars(characters: &BTreeSet<char>, hash: String) -> Self {
        let mut ids = vec![UNKNOWN_CHARACTER; characters.last().map_or(0, |&last| last as usize + 1)];
        for (id, &character) in (0..).zip(characters) {
            ids[character as usize] = id;
        }
        let characters = characters.iter().copied().collect();
        Self::new(Encoder::Chars { characters, ids }, FolderTokens::default(), hash)
    }

    pub fn bytes() -> Self {
        Self::new(Encoder::Bytes, FolderTokens::default(), blake3::hash(b"bytes").to_hex().to_string())
    }

    /// A tokenizer of words, whose hash is that of the vocabulary.
    pub(super) fn words(words: WordVocabulary) -> Self {
        let hash = hash_parts(["words", &words.to_json()]);
        Self::new(Encoder::Words(Box::new(words)), FolderTokens::default(), hash)
    }

    /// The tokens of a vocabulary of `size` ids, whose text is unknown. Their hash does not depend on the size: ids are ids.
    pub fn ids(size: usize) -> Self {
        Self::new(Encoder::Ids(size), FolderTokens::default(), blake3::hash(b"ids").to_hex().to_string())
    }

    /// True if it encodes and decodes text; false if it knows ids alone.
    pub fn knows_text(&self) -> bool {
        !matches!(self.0.encoder, Encoder::Ids(_))
    }

    pub(super) fn encoder(&self) -> &Encoder {
        &self.0.encoder
    }

    /// The tokens of a prompt. A special token that is written out in it, such as `<|endoftext|>`, becomes that token, as in Python's
    /// `tokenizers`. Without a tokenizer of text a prompt is ids.
    ///
    /// # Errors
    /// If the tokenizer has no token for a character, or the text should be ids and is not.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let invalid = |message: String| DataError::Encode { context: excerpt(text), message };
        match &self.0.encoder {
            Encoder::Ids(size) => return token_ids::parse(text, *size).map_err(|error| invalid(error.text)),
            Encoder::Library(library) => {
                return library.encode_prompt(text).map_err(|error| invalid(cannot_encode(&error.text)));
            }
            Encoder::Chars { .. } | Encoder::Bytes | Encoder::Words(_) => {}
        }
        let mut out = Vec::new();
        let mut rest = text;
        loop {
            // The leftmost special token, the longest of those that start there.
            let found = self.0.special.iter().filter(|(name, _)| !name.is_empty());
            let found = found.filter_map(|(name, id)| rest.find(name.as_str()).map(|at| (at, name.len(), *id)));
            let Some((at, length, id)) = found.min_by_key(|&(at, length, _)| (at, usize::MAX - length)) else {
                break;
            };
            self.append_tokens(&rest[..at], &mut out)?;
            out.push(id);
            rest = &rest[at + length..];
        }
        self.append_tokens(rest, &mut out)?;
        Ok(out)
    }

    /// The tokens of a document, or of a part of one. Text in it that looks like a special token stays text.
    ///
    /// # Errors
    /// If the tokenizer has no token for a character, or knows ids alone.
    pub fn encode_document(&self, text: &str) -> Result<Vec<u32>> {
        // English has three to five bytes per token.
        let mut out = Vec::with_capacity(text.len() / 3);
        self.append_tokens(text, &mut out)?;
        Ok(out)
    }

    /// Frees what encoding much text keeps.
    pub(crate) fn forget_words(&self) {
        if let Encoder::Library(library) = &self.0.encoder {
            library.forget_words();
        }
    }

    /// Appends the tokens of `text`, in which nothing is a special token, to `out`.
    fn append_tokens(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let invalid = |message: String| DataError::Encode { context: excerpt(text), message };
        match &self.0.encoder {
            Encoder::Library(library) => {
                library.encode(text, out).map_err(|error| invalid(cannot_encode(&error.text)))?;
            }
            Encoder::Chars { characters, ids } => {
                out.reserve(text.len());
                for (i, character) in text.chars().enumerate() {
                    let id = ids.get(character as usize).copied().filter(|&id| id != UNKNOWN_CHARACTER);
                    out.push(id.ok_or_else(|| invalid(unknown_character(character, i + 1, characters.len())))?);
                }
            }
            Encoder::Bytes => out.extend(text.bytes().map(u32::from)),
            Encoder::Words(words) => words.encode(text, out),
            Encoder::Ids(_) => return Err(invalid(token_ids::NO_TOKENIZER.to_owned())),
        }
        Ok(())
    }

    /// The text of the token `id` inside a text: many decoders drop the blank in front of the first word. Bytes that are not UTF-8 become
    /// replacement characters.
    pub fn piece(&self, id: u32) -> String {
        let alone = self.decode(&[id]);
        let Encoder::Library(library) = &self.0.encoder else { return alone };
        let doubled = library.decode(&[id, id]);
        let inside = doubled.strip_prefix(&*alone).filter(|_| !alone.contains(char::REPLACEMENT_CHARACTER));
        inside.map_or_else(|| alone.clone(), str::to_owned)
    }

    /// The text of `ids`. Bytes that are not UTF-8 become replacement characters. Ids beyond the vocabulary, which a model has when its
    /// vocabulary is rounded up, are skipped.
    pub fn decode(&self, ids: &[u32]) -> String {
        match &self.0.encoder {
            Encoder::Library(library) => library.decode(ids),
            Encoder::Words(words) => words.decode(ids),
            Encoder::Ids(_) => token_ids::text(ids),
            Encoder::Chars { characters, .. } => ids.iter().filter_map(|&id| characters.get(id as usize)).collect(),
            Encoder::Bytes => {
                let mut bytes = Vec::new();
                for &id in ids {
                    match u8::try_from(id) {
                        Ok(byte) => bytes.push(byte),
                        Err(_) if id == 256 => bytes.extend(END_OF_TEXT.bytes()),
                        Err(_) => {}
                    }
                }
                String::from_utf8_lossy(&bytes).into_owned()
            }
        }
    }

    /// The characters by id, if each character is a token.
    pub fn characters(&self) -> Option<&[char]> {
        match &self.0.encoder {
            Encoder::Chars { characters, .. } => Some(characters),
            _ => None,
        }
    }

    /// The highest id a text can have, plus one.
    pub fn vocab_size(&self) -> usize {
        self.0.vocab_size
    }

    /// The token between documents, if there is one.
    pub fn end_of_text(&self) -> Option<u32> {
        self.0.end_of_text
    }

    /// The token of text that the vocabulary lacks, with its name, if there is one.
    pub(crate) fn unknown(&self) -> Option<(u32, String)> {
        match &self.0.encoder {
            Encoder::Library(library) => library.unknown.and_then(|id| Some((id, library.token_name(id)?))),
            Encoder::Words(_) => self.0.named.get(UNKNOWN).map(|&id| (id, UNKNOWN.to_owned())),
            Encoder::Chars { .. } | Encoder::Bytes | Encoder::Ids(_) => None,
        }
    }

    /// The special tokens that the tokenizer itself puts in front of a text, as Llama's puts `<s>`.
    pub(crate) fn leading_special_tokens(&self) -> Vec<u32> {
        match &self.0.encoder {
            Encoder::Library(library) => library.leading_special_tokens(),
            _ => Vec::new(),
        }
    }

    /// True if `documents` documents in rows of `layout` follow one another without the token that the layout puts between them.
    pub fn joins_documents(&self, layout: &Layout, documents: u64) -> bool {
        documents > 1 && self.end_of_text().is_none() && layout.separates_documents()
    }

    /// The text in UTF-8 that each id stands for, nothing for special tokens. `None` if ids do not determine it: words lose letters and
    /// blanks of the text, and so do all tokenizers except byte-level BPE.
    pub(crate) fn token_texts(&self) -> Option<Vec<Vec<u8>>> {
        match &self.0.encoder {
            Encoder::Bytes => Some((0..self.vocab_size()).map(|id| u8::try_from(id).into_iter().collect()).collect()),
            Encoder::Chars { characters, .. } => Some(characters.iter().map(|c| c.to_string().into_bytes()).collect()),
            Encoder::Library(library) => library.token_texts(self.vocab_size()),
            Encoder::Words(_) | Encoder::Ids(_) => None,
        }
    }

    /// The name of the token `id`.
    pub(super) fn token_name(&self, id: u32) -> Option<String> {
        self.0.named.iter().find(|(_, other)| **other == id).map(|(name, _)| name.clone())
    }

    /// Content hash in hexadecimal digits.
    pub fn hash(&self) -> &str {
        &self.0.hash
    }

    /// The points at which documents may be cut.
    pub(crate) fn cut_points(&self) -> CutPoints {
        match &self.0.encoder {
            Encoder::Library(library) => library.cut_points,
            Encoder::Chars { .. } | Encoder::Bytes | Encoder::Ids(_) => CutPoints::Anywhere,
            Encoder::Words(_) => CutPoints::EnglishWords,
        }
    }

    /// The id of the token `name`.
    ///
    /// # Errors
    /// If there is none; the message has the special tokens with the most similar names.
    pub fn token_id(&self, name: &str) -> Result<u32, PlainError> {
        if let Some(&id) = self.0.named.get(name) {
            return Ok(id);
        }
        let mut special: Vec<&str> = self.0.special.iter().map(|(name, _)| name.as_str()).collect();
        special.sort_by(|a, b| strsim::jaro_winkler(b, name).total_cmp(&strsim::jaro_winkler(a, name)));
        special.truncate(8);
        let others = match special.as_slice() {
            [] => ", and no special tokens at all".to_owned(),
            special => format!("; its special tokens are {}", special.join(", ")),
        };
        Err(PlainError::request(format!("the tokenizer has no token {name:?}{others}")))
    }
}

/// The name of the token between documents, as [`END_NAMES`] says; `folder` has the end that the tokenizer's folder names.
fn end_of_text<'a>(
    special: &[(String, u32)],
    folder: &'a FolderTokens,
    is_token: impl Fn(&str) -> bool,
) -> Option<&'a str> {
    let is_special = |name: &&str| special.iter().any(|(special, _)| special == name);
    let named = folder.eos.as_deref();
    let known = END_NAMES.into_iter().find(is_special).or(named);
    known.or_else(|| END_NAMES.into_iter().find(|name| is_token(name)))
}

/// True if tokenizers give the token between documents the name `name`.
pub(super) fn is_end_name(name: &str) -> bool {
    END_NAMES.contains(&name)
}

/// The content hash of a tokenizer whose files have the hash `files`, and whose folder names the token `end` between documents.
fn hash_with_end(files: &str, end: &str) -> String {
    hash_parts(["end of text", files, end])
}

fn cannot_encode(message: &str) -> String {
    format!("the tokenizer cannot encode this text: {message}")
}

/// The start of a text, to identify it in a message.
fn excerpt(text: &str) -> String {
    let start: String = text.chars().take(40).collect();
    format!("{start:?}{}", if start.len() < text.len() { " …" } else { "" })
}

/// The message about `character`, number `number` of a text, which is not one of the `known` characters.
fn unknown_character(character: char, number: usize, known: usize) -> String {
    let code = character as u32;
    format!(
        "{character:?} (U+{code:04X}), character {number} of this text, is not among the {known} characters of the training source: \
         {UNKNOWN_CHARACTER_ADVICE}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_numbered_in_order() {
        let tokenizer = TextTokenizer::chars(&"hello\n日".chars().collect(), "h".into());
        assert_eq!(tokenizer.vocab_size(), 6);
        let ids = tokenizer.encode_prompt("hé".get(..1).unwrap()).unwrap();
        assert_eq!((ids.as_slice(), tokenizer.decode(&[0, 2, 5, 99])), ([2].as_slice(), "\nh日".into()));
        let error = tokenizer.encode_prompt("help").unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "\"help\": 'p' (U+0070), character 4 of this text, is not among the 6 characters of the training source: \
                 {UNKNOWN_CHARACTER_ADVICE}"
            )
        );
        assert!(tokenizer.token_id("[BOT]").unwrap_err().text.contains("no special tokens"));
    }

    #[test]
    fn bytes_have_an_end_of_text() {
        let tokenizer = TextTokenizer::bytes();
        assert_eq!(tokenizer.encode_prompt("é<|endoftext|>a").unwrap(), [0xc3, 0xa9, 256, 97]);
        assert_eq!(tokenizer.decode(&[0xc3, 0xa9, 256, 97, 300, 0xff]), "é<|endoftext|>a\u{fffd}");
        assert_eq!(tokenizer.encode_document(END_OF_TEXT).unwrap().len(), END_OF_TEXT.len());
        assert!(tokenizer.token_id("<|end|>").unwrap_err().text.contains("special tokens are <|endoftext|>"));
    }
}
