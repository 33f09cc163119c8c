//! Makes tokenizers: from their files, or trained on text and cached.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::folder_tokens::FolderTokens;
use super::library::LibraryTokenizer;
use super::text_tokenizer::{TextTokenizer, is_end_name};
use super::tokenizer_file::is_tokenizer_file;
use super::train::{self, TrainingPart};
use super::word_vocabulary::WordVocabulary;
use crate::cache::{DataCache, EntryKind};
use crate::error::{DataError, Result};
use crate::hashing::hash_parts;
use crate::progress::{Progress, Report};
use crate::source::{LocatedSource, count_files, locate};
use crate::split_name::SplitName;
use runner_files::{is_absent, parent_folder, read_regular};
use runner_spec::error::PlainError;
use runner_spec::experiment::{Content, Data, Layout, Tokenizer, Validation};

/// Makes the tokenizer of `data`. `train` is the training source of `data`, `vocab_size` the model's vocabulary, if it is known.
///
/// # Errors
/// If a file is not a tokenizer, or the training source cannot be read for a vocabulary.
pub(crate) fn make_tokenizer(
    data: &Data,
    train: &LocatedSource,
    vocab_size: Option<usize>,
    cache: &DataCache,
    report: &Report<'_>,
) -> Result<TextTokenizer> {
    let vocabulary = TrainedVocabulary { train, cache, report };
    let part = training_part(data);
    match &data.tokenizer {
        Tokenizer::Chars {} => {
            vocabulary.check_has_text("data.tokenizer.chars", "the characters come")?;
            let parse = |_: &Path, text: &str| {
                let characters: BTreeSet<char> =
                    serde_json::from_str(text).map_err(|error| PlainError::failure(error.to_string()))?;
                let text: String = characters.iter().collect();
                Ok(TextTokenizer::chars(&characters, hash_parts(["chars", &text])))
            };
            let make = |progress: &dyn Fn(u64)| {
                let characters = train::collect_characters(train, progress)?;
                Ok(characters.into_iter().map(String::from).collect::<serde_json::Value>().to_string())
            };
            vocabulary.open_or_make("chars 1", &[], &[], "characters.json", &parse, &make)
        }
        Tokenizer::Bpe { vocab_size, special_tokens } => {
            vocabulary.check_has_text("data.tokenizer.bpe", "the merges are trained")?;
            check_special_tokens(special_tokens, "data.tokenizer.bpe.special_tokens")?;
            let settings = [format!("{part:?}"), vocab_size.to_string()];
            let parse = |path: &Path, text: &str| {
                parse_tokenizer_json(path, text.as_bytes()).map_err(|error| PlainError::failure(error.to_string()))
            };
            let make = |progress: &dyn Fn(u64)| train::train_merges(train, part, *vocab_size, special_tokens, progress);
            vocabulary.open_or_make("bpe 1", &settings, special_tokens, "tokenizer.json", &parse, &make)
        }
        Tokenizer::Words { lowercase, min_count, special_tokens } => {
            vocabulary.check_has_text("data.tokenizer.words", "the words come")?;
            check_special_tokens(special_tokens, "data.tokenizer.words.special_tokens")?;
            let settings = [format!("{part:?}"), lowercase.to_string(), min_count.to_string()];
            let parse = |_: &Path, text: &str| WordVocabulary::from_json(text).map(TextTokenizer::words);
            let make = |progress: &dyn Fn(u64)| {
                let words = train::train_words(train, part, *lowercase, *min_count, special_tokens, progress)?;
                Ok(words.to_json())
            };
            vocabulary.open_or_make("words 1", &settings, special_tokens, "words.json", &parse, &make)
        }
        Tokenizer::Ids {} => vocab_size.map(TextTokenizer::ids).ok_or_else(|| {
            let message = "the size of the vocabulary is unknown; set model.vocab_size, or name the tokenizer that made the token shards";
            DataError::setting("data.tokenizer.ids", message)
        }),
        other => read_tokenizer(other, "data.tokenizer"),
    }
}

/// Loads a tokenizer that is made without text.
///
/// # Errors
/// If its files are not a tokenizer, or it is trained on text or on the hub.
pub fn load_tokenizer(tokenizer: &Tokenizer) -> Result<TextTokenizer> {
    read_tokenizer(tokenizer, "tokenizer")
}

fn read_tokenizer(tokenizer: &Tokenizer, key: &'static str) -> Result<TextTokenizer> {
    let problem = match tokenizer {
        Tokenizer::Gpt2 { vocab, merges } => {
            let library = LibraryTokenizer::gpt2(vocab, merges)?;
            let hash = |path: &Path| read_regular(path).map(|b| blake3::hash(&b).to_hex()).map_err(DataError::io(path));
            let hash = hash_parts(["gpt2", &hash(vocab)?, &hash(merges)?]);
            return Ok(TextTokenizer::library(library, FolderTokens::default(), hash));
        }
        Tokenizer::File(path) => {
            let bytes = read_regular(path).map_err(DataError::io(path))?;
            return match LibraryTokenizer::from_json(&bytes, path) {
                Ok(library) => {
                    let folder = FolderTokens::read(parent_folder(path), &library);
                    Ok(TextTokenizer::from_folder(library, folder, blake3::hash(&bytes).to_hex().to_string()))
                }
                // A run keeps its tokenizer in a file of this name.
                Err(_) if is_tokenizer_file(&bytes) => TextTokenizer::read(path),
                Err(error) => Err(error),
            };
        }
        Tokenizer::Bytes {} => return Ok(TextTokenizer::bytes()),
        Tokenizer::Chars {} | Tokenizer::Bpe { .. } | Tokenizer::Words { .. } => {
            "made from text, and there is no text here"
        }
        Tokenizer::Ids {} => "none: only ids are known, not their text",
        Tokenizer::Hub(_) => "on the hub, and its files are not here yet",
    };
    let message = format!("{problem}; give GPT-2's vocab.json and merges.txt, a tokenizer.json or bytes");
    Err(DataError::setting(key, message))
}

/// The tokenizer in `bytes`, the content of the tokenizer.json at `path`, whose folder says nothing about it.
fn parse_tokenizer_json(path: &Path, bytes: &[u8]) -> Result<TextTokenizer> {
    let library = LibraryTokenizer::from_json(bytes, path)?;
    Ok(TextTokenizer::library(library, FolderTokens::default(), blake3::hash(bytes).to_hex().to_string()))
}

/// True if `data` seems to have several documents without a token between them. No text is read, so a file of records counts as several
/// documents. A tokenizer of the hub, and files that cannot be read, count as correct.
pub fn may_join_documents(data: &Data) -> bool {
    let has_documents = match data.train.content() {
        Content::Text => count_files(data.train.files()) > 1,
        Content::Tokens(_) => false,
        _ => true,
    };
    let joins = |tokenizer: TextTokenizer| tokenizer.joins_documents(&data.layout, 2);
    has_documents
        && match &data.tokenizer {
            Tokenizer::Bpe { special_tokens, .. } | Tokenizer::Words { special_tokens, .. } => {
                data.layout.separates_documents() && !special_tokens.iter().any(|name| is_end_name(name))
            }
            Tokenizer::Chars {} => joins(TextTokenizer::chars(&BTreeSet::new(), String::new())),
            Tokenizer::Ids {} | Tokenizer::Hub(_) => false,
            other => read_tokenizer(other, "data.tokenizer").is_ok_and(joins),
        }
}

/// Trains byte-level BPE of `vocab_size` tokens on the text of `data`, less the fraction that it holds out, with `special` among the tokens.
/// Returns the content of a tokenizer.json. The same text gives the same tokenizer.
///
/// # Errors
/// If the training source cannot be read, has no text, or is too small for a merge.
pub fn train_tokenizer(
    data: &Data,
    vocab_size: usize,
    special: &[String],
    cache_dir: &Path,
    report: &Report<'_>,
) -> Result<String> {
    let cache = DataCache::open(cache_dir)?;
    let train = &locate(&data.train, SplitName::Train, &cache, report)?;
    let vocabulary = TrainedVocabulary { train, cache: &cache, report };
    vocabulary.check_has_text("data.train", "the merges are trained")?;
    vocabulary.make(&|progress| train::train_merges(train, training_part(data), vocab_size, special, progress))
}

impl TextTokenizer {
    /// Reads the tokenizer with the content hash `hash` that a run keeps in the file at `path`. `None` if there is no file, or
    /// if it holds a different tokenizer.
    ///
    /// # Errors
    /// If the file is damaged or cannot be read.
    pub fn read_recorded(path: &Path, hash: &str) -> Result<Option<Self>> {
        match Self::read(path) {
            Ok(tokenizer) => Ok(Some(tokenizer).filter(|tokenizer| tokenizer.hash() == hash)),
            Err(_) if is_absent(path) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// [`read_recorded`](Self::read_recorded) where the recorded tokenizer is needed in place of `named`: a file that `named` is made from is
    /// gone, or it is on the hub, which then need not be asked. `None` if it is not needed.
    ///
    /// # Errors
    /// If the file is needed, and is damaged or cannot be read.
    pub fn read_recorded_for(named: &Tokenizer, path: &Path, hash: &str) -> Result<Option<Self>> {
        let is_gone = match named {
            Tokenizer::Gpt2 { vocab, merges } => is_absent(vocab) || is_absent(merges),
            Tokenizer::File(file) => is_absent(file),
            _ => false,
        };
        let (reason, advice) = match named {
            _ if is_gone => ("the tokenizer's files are gone, and ", "restore the tokenizer's files or this copy"),
            Tokenizer::Hub(_) => ("", "remove this copy to read the tokenizer from the hub"),
            _ => return Ok(None),
        };
        Self::read_recorded(path, hash).map_err(|error| {
            let message = format!("{reason}the run's own copy cannot be used: {error}; {advice}");
            DataError::setting("data.tokenizer", message)
        })
    }
}

/// A vocabulary made from the text of a source.
struct TrainedVocabulary<'a> {
    train: &'a LocatedSource,
    cache: &'a DataCache,
    report: &'a Report<'a>,
}

/// Returns the content of a vocabulary's file; the argument receives the bytes of text that were read.
type MakeVocabulary<'a> = dyn Fn(&dyn Fn(u64)) -> Result<String> + 'a;

impl TrainedVocabulary<'_> {
    fn check_has_text(&self, key: &'static str, what: &str) -> Result<()> {
        if self.train.documents.is_tokens() {
            let message = format!(
                "{what} from the text of data.train, but token shards hold none; give {{gpt2: …}} or {{file: …}}"
            );
            return Err(DataError::setting(key, message));
        }
        Ok(())
    }

    fn make(&self, make: &MakeVocabulary<'_>) -> Result<String> {
        let bytes_total = self.train.bytes();
        let content = make(&|bytes_done| (self.report)(Progress::TrainingTokenizer { bytes_done, bytes_total }))?;
        self.train.check_unchanged()?;
        Ok(content)
    }

    /// Opens the file `name` in the cache entry for a vocabulary of this kind and version, with these settings. It is made first if it
    /// is not there.
    fn open_or_make(
        &self,
        kind: &str,
        settings: &[String],
        special_tokens: &[String],
        name: &str,
        parse: &dyn Fn(&Path, &str) -> Result<TextTokenizer, PlainError>,
        make: &MakeVocabulary<'_>,
    ) -> Result<TextTokenizer> {
        let settings = settings.iter().chain(special_tokens).map(String::as_str);
        let key = hash_parts([kind, &self.train.hash].into_iter().chain(settings));
        let mut build = |folder: &Path| fs::write(folder.join(name), self.make(make)?).map_err(DataError::io(folder));
        let open = |folder: &Path| {
            let path = folder.join(name);
            let bytes = read_regular(&path).map_err(DataError::io(&path))?;
            parse(&path, &String::from_utf8_lossy(&bytes)).map_err(|message| DataError::damaged(&path, message))
        };
        Ok(self.cache.open_or_build(EntryKind::Tokenizers, &key, self.report, &open, &mut build)?.0)
    }
}

/// The part of the training source that is trained on. Packed rows are split by tokens, which only a tokenizer can count; here
/// they are split by bytes.
fn training_part(data: &Data) -> TrainingPart {
    match (&data.validation, &data.layout) {
        (Some(Validation::Fraction(fraction)), Layout::Padded { .. }) => TrainingPart::Documents(1.0 - fraction),
        (Some(Validation::Fraction(fraction)), _) => TrainingPart::Bytes(1.0 - fraction),
        _ => TrainingPart::Whole,
    }
}

fn check_special_tokens(special: &[String], key: &'static str) -> Result<()> {
    let distinct: BTreeSet<_> = special.iter().collect();
    if distinct.len() < special.len() {
        return Err(DataError::setting(key, "a token is listed twice"));
    }
    if let Some(short) = special.iter().find(|name| name.chars().count() < 2) {
        return Err(DataError::setting(key, format!("{short:?} is too short to be distinguished from text")));
    }
    Ok(())
}
