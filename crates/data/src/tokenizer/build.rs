//! From the tokenizer of the experiment to one that encodes, trained from the source and cached where it must be.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::english::English;
use super::library::Library;
use super::text_tokenizer::TextTokenizer;
use super::train::{self, Part};
use crate::cache::Cache;
use crate::error::DataError;
use crate::fingerprint::hash_parts;
use crate::progress::{Progress, Report};
use crate::source::{Documents, Located};
use runner_spec::experiment::{Data, Layout, Tokenizer, Validation};

/// The tokenizer of `data`, whose training source is `train`.
///
/// # Errors
/// If its files are not a tokenizer's, or the training source cannot be read for a vocabulary.
pub(crate) fn build(
    data: &Data,
    train: &Located,
    cache: &Cache,
    report: &Report<'_>,
) -> Result<TextTokenizer, DataError> {
    let trained = |key, what: &str| {
        if train.documents == Documents::Tokens {
            let message = format!(
                "{what} from the text of data.train, but token shards hold none; give {{gpt2: …}} or {{file: …}}"
            );
            return Err(DataError::setting(key, message));
        }
        Ok(())
    };
    let bytes_total = train.bytes();
    let progress = |bytes_done| report(Progress::TrainingTokenizer { bytes_done, bytes_total });
    let waiting = || report(Progress::Waiting);
    match &data.tokenizer {
        Tokenizer::Gpt2 { vocab, merges } => {
            let library = Library::gpt2(vocab, merges)?;
            let hash = |path: &Path| fs::read(path).map(|b| blake3::hash(&b).to_hex()).map_err(DataError::io(path));
            Ok(TextTokenizer::library(library, hash_parts(["gpt2", &hash(vocab)?, &hash(merges)?])))
        }
        Tokenizer::File(path) => from_file(path),
        Tokenizer::Bytes {} => Ok(TextTokenizer::bytes()),
        Tokenizer::Chars {} => {
            trained("data.tokenizer.chars", "the characters come")?;
            let key = hash_parts(["chars 1", &train.hash]);
            let name = "characters.json";
            let open = |folder: &Path| {
                let bytes = fs::read(folder.join(name)).map_err(DataError::io(folder))?;
                serde_json::from_slice::<BTreeSet<char>>(&bytes)
                    .map_err(|error| DataError::damaged(folder, error.to_string()))
            };
            let mut make = |folder: &Path| {
                let characters = train::characters(train, &progress)?;
                train.check_unchanged()?;
                let json = serde_json::to_vec(&characters).unwrap_or_default();
                fs::write(folder.join(name), json).map_err(DataError::io(folder))
            };
            let (characters, _) = cache.entry("tokenizers", &key, &waiting, &open, &mut make)?;
            let text: String = characters.iter().collect();
            Ok(TextTokenizer::chars(&characters, hash_parts(["chars", &text])))
        }
        Tokenizer::Bpe { vocab_size, special_tokens } => {
            trained("data.tokenizer.bpe", "the merges are trained")?;
            check_bpe(*vocab_size, special_tokens)?;
            let part = part(data);
            let mut key = vec!["bpe 1".to_owned(), train.hash.clone(), format!("{part:?}"), vocab_size.to_string()];
            key.extend(special_tokens.iter().cloned());
            let key = hash_parts(key.iter().map(String::as_str));
            let name = "tokenizer.json";
            let open = |folder: &Path| match from_file(&folder.join(name)) {
                Err(DataError::File { message, .. }) => Err(DataError::damaged(folder, message)),
                other => other,
            };
            let mut make = |folder: &Path| {
                let json = train::bpe(train, part, *vocab_size, special_tokens, &progress)?;
                train.check_unchanged()?;
                fs::write(folder.join(name), json).map_err(DataError::io(folder))
            };
            Ok(cache.entry("tokenizers", &key, &waiting, &open, &mut make)?.0)
        }
        Tokenizer::Words { lowercase, min_count, special_tokens } => {
            trained("data.tokenizer.words", "the words come")?;
            check_special(special_tokens, "data.tokenizer.words.special_tokens")?;
            let part = part(data);
            let numbers = [format!("{part:?}"), lowercase.to_string(), min_count.to_string()];
            let key =
                ["words 1", &train.hash].into_iter().chain(numbers.iter().chain(special_tokens).map(String::as_str));
            let key = hash_parts(key);
            let name = "words.json";
            let open = |folder: &Path| {
                let text = fs::read_to_string(folder.join(name)).map_err(DataError::io(folder))?;
                English::from_json(&text).map_err(|message| DataError::damaged(folder, message))
            };
            let mut make = |folder: &Path| {
                let english = train::english(train, part, *lowercase, *min_count, special_tokens, &progress)?;
                train.check_unchanged()?;
                fs::write(folder.join(name), english.to_json()).map_err(DataError::io(folder))
            };
            Ok(TextTokenizer::english(cache.entry("tokenizers", &key, &waiting, &open, &mut make)?.0))
        }
        Tokenizer::Hub { .. } => Err(DataError::setting("data.tokenizer.hub", "`hub::lower` finds its files first")),
    }
}

fn from_file(path: &Path) -> Result<TextTokenizer, DataError> {
    let bytes = fs::read(path).map_err(DataError::io(path))?;
    let library = Library::from_json(&bytes, path)?;
    Ok(TextTokenizer::library(library, blake3::hash(&bytes).to_hex().to_string()))
}

/// The part of the training source that is trained on. For packed rows the split is by tokens, which only a tokenizer
/// can count: here it is by bytes.
fn part(data: &Data) -> Part {
    match (&data.validation, &data.layout) {
        (Some(Validation::Fraction(fraction)), Layout::Packed { .. } | Layout::Columns { .. }) => {
            Part::Bytes(1.0 - fraction)
        }
        (Some(Validation::Fraction(fraction)), Layout::Padded { .. }) => Part::Documents(1.0 - fraction),
        _ => Part::Whole,
    }
}

fn check_special(special: &[String], key: &'static str) -> Result<(), DataError> {
    let distinct: BTreeSet<_> = special.iter().collect();
    if distinct.len() < special.len() {
        return Err(DataError::setting(key, "a token is named twice"));
    }
    if let Some(short) = special.iter().find(|name| name.chars().count() < 2) {
        return Err(DataError::setting(key, format!("{short:?} is too short to tell from text")));
    }
    Ok(())
}

fn check_bpe(vocab_size: usize, special: &[String]) -> Result<(), DataError> {
    check_special(special, "data.tokenizer.bpe.special_tokens")?;
    let least = 256 + special.len();
    if vocab_size < least {
        let message = format!("{vocab_size} is too small: 256 bytes and {} special tokens make {least}", special.len());
        return Err(DataError::setting("data.tokenizer.bpe.vocab_size", message));
    }
    Ok(())
}
