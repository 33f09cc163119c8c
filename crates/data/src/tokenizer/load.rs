//! Tokenizers outside of experiments: one that is already made, or one trained on files.

use std::path::Path;

use super::build::build;
use super::text_tokenizer::TextTokenizer;
use super::train::{self, Part};
use crate::cache::Cache;
use crate::error::DataError;
use crate::progress::{Progress, Report, SplitName};
use crate::source::{Documents, Located, Origin, locate};
use runner_spec::experiment::{Data, Layout, Source, Tokenizer};

/// A tokenizer that needs no text to be made from.
///
/// # Errors
/// If its files are not a tokenizer's, or it would have to be made from text or fetched from the hub (key `tokenizer`).
pub fn load_tokenizer(
    tokenizer: &Tokenizer,
    cache_dir: &Path,
    report: &Report<'_>,
) -> Result<TextTokenizer, DataError> {
    let problem = match tokenizer {
        Tokenizer::Chars {} | Tokenizer::Bpe { .. } | Tokenizer::Words { .. } => {
            "made from text, of which there is none here"
        }
        Tokenizer::Hub { .. } => "on the hub, and its files are not here yet",
        Tokenizer::Gpt2 { .. } | Tokenizer::File(_) | Tokenizer::Bytes {} => "",
    };
    if !problem.is_empty() {
        let message = format!("{problem}; give GPT-2's vocab.json and merges.txt, a tokenizer.json or bytes");
        return Err(DataError::setting("tokenizer", message));
    }
    let (train, layout) = (Source::Tokens { files: Vec::new() }, Layout::Packed { length: 1 });
    let data = Data { tokenizer: tokenizer.clone(), train, validation: None, layout, shuffle: false, drop_last: false };
    let (documents, files) = (Documents::Tokens, Vec::new());
    let nothing = Located { origin: Origin::Train, documents, files, hash: String::new() };
    build(&data, &nothing, &Cache::open(cache_dir)?, report)
}

/// Byte-level BPE of `vocab_size` tokens, `special` among them, trained on all of `source`: the content of a tokenizer.json. The same
/// text gives the same tokenizer.
///
/// # Errors
/// If the source cannot be read, or is too small for a merge.
pub fn train_tokenizer(
    source: &Source,
    vocab_size: usize,
    special: &[String],
    cache_dir: &Path,
    report: &Report<'_>,
) -> Result<String, DataError> {
    let cache = Cache::open(cache_dir)?;
    let no_corpus = |_| Err(DataError::setting("data.train", "not a file"));
    let hashing = |bytes_done, bytes_total| {
        report(Progress::Hashing { split: SplitName::Train, bytes_done, bytes_total });
    };
    let located = locate(source, Origin::Train, &cache, &no_corpus, &hashing)?;
    let bytes_total = located.bytes();
    let progress = |bytes_done| report(Progress::TrainingTokenizer { bytes_done, bytes_total });
    let json = train::bpe(&located, Part::Whole, vocab_size, special, &progress)?;
    located.check_unchanged()?;
    Ok(json)
}
