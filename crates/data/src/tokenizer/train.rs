//! Vocabularies made from the training source: its characters, its words, or byte-pair merges.

use std::collections::{BTreeSet, HashMap};

use rayon::prelude::*;
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::gpt2_words::words;
use super::library::byte_level;
use super::token_bytes::byte_characters;
use super::word_vocabulary::{self, WordVocabulary};
use crate::cut_points::{self, CutPoints};
use crate::error::{DataError, Result};
use crate::source::{LocatedSource, TextPiece, read, read_in_batches};

/// The limit of distinct words in memory, beyond which the rarest are forgotten.
const MAX_DISTINCT_WORDS: usize = 8 << 20;
/// The limit of the bytes of these words.
const MAX_DISTINCT_BYTES: usize = 1 << 30;

/// The part of the training source that is trained on. The rest is for validation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum TrainingPart {
    Whole,
    /// This fraction of the bytes, counted from the start.
    Bytes(f64),
    /// This fraction of the documents, counted from the start.
    Documents(f64),
}

/// The distinct characters of the whole source.
pub(super) fn collect_characters(source: &LocatedSource, progress: &dyn Fn(u64)) -> Result<BTreeSet<char>> {
    let mut seen = vec![false; char::MAX as usize + 1];
    let mut done = 0;
    read(source, CutPoints::Anywhere, &mut |piece| {
        for character in piece.text.chars() {
            seen[character as usize] = true;
        }
        done += piece.text.len() as u64;
        progress(done);
        Ok(())
    })?;
    Ok((0..).zip(seen).filter(|(_, is_seen)| *is_seen).filter_map(|(code, _)| char::from_u32(code)).collect())
}

/// Trains byte-level BPE on `part` of `source` and returns its tokenizer.json: the special tokens, the 256 bytes, then
/// merges, the most frequent pair first. The same source gives the same file.
pub(super) fn train_merges(
    source: &LocatedSource,
    part: TrainingPart,
    vocab_size: usize,
    special: &[String],
    progress: &dyn Fn(u64),
) -> Result<String> {
    let mut counts = HashMap::new();
    read_part(source, part, CutPoints::Words, progress, &mut |batch| {
        count_words(batch, &mut counts, |text, add| cut_points::words(text).for_each(add));
        if counts.len() > MAX_DISTINCT_WORDS {
            counts.retain(|_, count| *count > 1);
        }
    })?;
    let invalid = |error: String| DataError::setting("data.tokenizer.bpe", error);
    // Counts are added in 32 bits by the trainer.
    let total: u64 = counts.iter().map(|(word, count)| word.len() as u64 * count).sum();
    let scale = total / i32::MAX as u64 + 1;
    // GPT-2's words, in the characters that stand for bytes.
    let alphabet = byte_characters();
    let mut pieces: HashMap<String, u64> = HashMap::new();
    for (text, count) in &counts {
        for word in words(text) {
            let piece = word.bytes().map(|byte| alphabet[usize::from(byte)].1).collect();
            *pieces.entry(piece).or_insert(0) += count;
        }
    }
    let pieces = pieces.into_iter().map(|(piece, count)| (piece.into(), count.div_ceil(scale))).collect();

    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(vocab_size)
        .min_frequency(2)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(special.iter().map(|name| AddedToken::from(name.clone(), true)).collect())
        .build();
    let mut model = BPE::default();
    trainer.do_train(&pieces, &mut model).map_err(|error| invalid(error.to_string()))?;
    let tokenizer = byte_level(model, special.iter().cloned()).map_err(|error| invalid(error.text))?;
    tokenizer.to_string(false).map_err(|error| invalid(error.to_string()))
}

/// The vocabulary of the words in `part` of `source`.
pub(super) fn train_words(
    source: &LocatedSource,
    part: TrainingPart,
    lowercase: bool,
    min_count: u64,
    special: &[String],
    progress: &dyn Fn(u64),
) -> Result<WordVocabulary> {
    let mut counts = HashMap::new();
    let mut rare = 1;
    read_part(source, part, CutPoints::EnglishWords, progress, &mut |batch| {
        count_words(batch, &mut counts, |text, add| {
            word_vocabulary::split(text, lowercase, |word| {
                if word.len() <= word_vocabulary::MAX_WORD_BYTES {
                    add(word);
                }
            });
        });
        while counts.len() > MAX_DISTINCT_WORDS
            || (counts.len() > MAX_DISTINCT_WORDS / 16 && text_bytes(&counts) > MAX_DISTINCT_BYTES)
        {
            counts.retain(|_, count| *count > rare);
            rare *= 2;
        }
    })?;
    let key = "data.tokenizer.words.special_tokens";
    WordVocabulary::new(counts, lowercase, min_count, special).map_err(|message| DataError::setting(key, message))
}

fn text_bytes(counts: &HashMap<String, u64>) -> usize {
    counts.keys().map(String::len).sum()
}

/// Hands the text of `part` of `source` to `count`, in batches.
fn read_part(
    source: &LocatedSource,
    part: TrainingPart,
    cut: CutPoints,
    progress: &dyn Fn(u64),
    count: &mut dyn FnMut(Vec<String>),
) -> Result<()> {
    let (mut bytes_left, mut documents_left) = match part {
        TrainingPart::Whole => (u64::MAX, u64::MAX),
        TrainingPart::Bytes(fraction) => (portion(measure(source)?.0, fraction), u64::MAX),
        TrainingPart::Documents(fraction) => (u64::MAX, portion(measure(source)?.1, fraction)),
    };
    let mut text_in_part = |TextPiece { mut text, starts_document }| {
        if starts_document && documents_left == 0 {
            bytes_left = 0;
        }
        documents_left = documents_left.saturating_sub(u64::from(starts_document));
        let length = text.len() as u64;
        if length > bytes_left {
            text.truncate(text.floor_char_boundary(bytes_left as usize));
            // A cut word is not counted.
            if cut == CutPoints::EnglishWords {
                text.truncate(cut.last_in(&text, 0).unwrap_or(0));
            }
        }
        bytes_left = bytes_left.saturating_sub(length);
        text
    };
    let mut done = 0;
    read_in_batches(source, cut, &mut |batch| {
        let texts: Vec<String> = batch.into_iter().map(&mut text_in_part).collect();
        done += texts.iter().map(|text| text.len() as u64).sum::<u64>();
        count(texts);
        progress(done);
        Ok(())
    })
}

/// `fraction` of `count`, rounded as in the split of the tokens, and at least one.
fn portion(count: u64, fraction: f64) -> u64 {
    ((count as f64 * fraction) as u64).max(1)
}

/// Bytes of text and documents in `source`.
fn measure(source: &LocatedSource) -> Result<(u64, u64)> {
    let (mut bytes, mut documents) = (0, 0);
    read(source, CutPoints::Anywhere, &mut |piece| {
        bytes += piece.text.len() as u64;
        documents += u64::from(piece.starts_document);
        Ok(())
    })?;
    Ok((bytes, documents))
}

/// Adds the words of `batch` to `counts`. `split` hands the words of a text to its second argument.
fn count_words(
    batch: Vec<String>,
    counts: &mut HashMap<String, u64>,
    split: impl Fn(&str, &mut dyn FnMut(&str)) + Sync,
) {
    let new = batch.into_par_iter().fold(HashMap::new, |mut counts: HashMap<String, u64>, text| {
        split(&text, &mut |word| match counts.get_mut(word) {
            Some(count) => *count += 1,
            None => _ = counts.insert(word.to_owned(), 1),
        });
        counts
    });
    *counts = merge(std::mem::take(counts), new.reduce(HashMap::new, merge));
}

fn merge(a: HashMap<String, u64>, b: HashMap<String, u64>) -> HashMap<String, u64> {
    let (mut large, small) = if a.len() < b.len() { (b, a) } else { (a, b) };
    for (word, count) in small {
        *large.entry(word).or_insert(0) += count;
    }
    large
}
