//! Vocabularies made from the training source: its characters, or byte-pair merges trained on it.

use std::collections::{BTreeSet, HashMap};

use rayon::prelude::*;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

use super::english::{self, English};
use super::library::byte_level;
use super::words::{Cut, words};
use crate::error::DataError;
use crate::source::{Located, Piece, read};

/// Text counted in parallel at a time, in bytes. Fixed, as the counts must not depend on the number of threads.
const BATCH: usize = 8 << 20;
/// Distinct words in memory; past it those met once are forgotten.
const DISTINCT: usize = 8 << 20;
/// Bytes of the distinct words of a vocabulary in memory.
const DISTINCT_BYTES: usize = 1 << 30;

/// How much of the training source is the training part, the rest being validation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Part {
    Whole,
    /// This fraction of the bytes, from the start.
    Bytes(f64),
    /// This fraction of the documents, from the start.
    Documents(f64),
}

/// The distinct characters of the whole source.
pub(super) fn characters(source: &Located, progress: &dyn Fn(u64)) -> Result<BTreeSet<char>, DataError> {
    let mut seen = BTreeSet::new();
    let mut ascii = [false; 128];
    let mut done = 0;
    read(source, Cut::Anywhere, &mut |piece| {
        for character in piece.text.chars() {
            match ascii.get_mut(character as usize) {
                Some(seen) => *seen = true,
                None => _ = seen.insert(character),
            }
        }
        done += piece.text.len() as u64;
        progress(done);
        Ok(())
    })?;
    seen.extend((0_u8..).zip(ascii).filter(|&(_, seen)| seen).map(|(byte, _)| char::from(byte)));
    Ok(seen)
}

/// Trains byte-level BPE on `part` of `source` and returns its tokenizer.json: the special tokens, the 256 bytes, then
/// merges, the most frequent pair first. The same source gives the same file.
pub(super) fn bpe(
    source: &Located,
    part: Part,
    vocab_size: usize,
    special: &[String],
    progress: &dyn Fn(u64),
) -> Result<String, DataError> {
    let mut counts = HashMap::new();
    read_part(source, part, Cut::Words, progress, &mut |batch| count(batch, &mut counts))?;
    let invalid = |error: String| DataError::setting("data.tokenizer.bpe", error);
    // Counts are added in 32 bits by the trainer.
    let total: u64 = counts.iter().map(|(word, count)| word.len() as u64 * count).sum();
    let scale = total / i32::MAX as u64 + 1;
    let pieces: HashMap<String, u64> = counts
        .into_par_iter()
        .flat_map_iter(|(word, count)| pre_tokenize(&word).into_iter().map(move |piece| (piece, count)))
        .fold(HashMap::new, |mut counts, (piece, count)| {
            *counts.entry(piece).or_insert(0) += count;
            counts
        })
        .reduce(HashMap::new, merge);
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
    let tokenizer = byte_level(model, special.iter().cloned()).map_err(invalid)?;
    tokenizer.to_string(false).map_err(|error| invalid(error.to_string()))
}

/// The vocabulary of the words in `part` of `source`, as `Tokenizer::Words` has it.
pub(super) fn english(
    source: &Located,
    part: Part,
    lowercase: bool,
    min_count: u64,
    special: &[String],
    progress: &dyn Fn(u64),
) -> Result<English, DataError> {
    let mut counts = HashMap::new();
    let mut rare = 1;
    read_part(source, part, Cut::English, progress, &mut |batch| {
        let new = batch.par_iter().fold(HashMap::new, |mut counts: HashMap<String, u64>, text| {
            english::split(text, lowercase, |word| match counts.get_mut(word) {
                Some(count) => *count += 1,
                None if word.len() > english::MAX_WORD => {}
                None => _ = counts.insert(word.to_owned(), 1),
            });
            counts
        });
        counts = merge(std::mem::take(&mut counts), new.reduce(HashMap::new, merge));
        batch.clear();
        while counts.len() > DISTINCT || (counts.len() > DISTINCT / 16 && text_bytes(&counts) > DISTINCT_BYTES) {
            counts.retain(|_, count| *count > rare);
            rare *= 2;
        }
    })?;
    let key = "data.tokenizer.words.special_tokens";
    English::new(counts, lowercase, min_count, special).map_err(|message| DataError::setting(key, message))
}

fn text_bytes(counts: &HashMap<String, u64>) -> usize {
    counts.keys().map(String::len).sum()
}

/// Hands the text of `part` of `source` to `count`, in batches that it empties.
fn read_part(
    source: &Located,
    part: Part,
    cut: Cut,
    progress: &dyn Fn(u64),
    count: &mut dyn FnMut(&mut Vec<String>),
) -> Result<(), DataError> {
    let (mut bytes_left, mut documents_left) = match part {
        Part::Whole => (u64::MAX, u64::MAX),
        Part::Bytes(fraction) => (portion(measure(source)?.0, fraction), u64::MAX),
        Part::Documents(fraction) => (u64::MAX, portion(measure(source)?.1, fraction)),
    };
    let (mut batch, mut size, mut done) = (Vec::new(), 0, 0);
    read(source, cut, &mut |Piece { mut text, first }| {
        if first && documents_left == 0 {
            bytes_left = 0;
        }
        documents_left = documents_left.saturating_sub(u64::from(first));
        let length = text.len() as u64;
        if length > bytes_left {
            text.truncate(text.floor_char_boundary(bytes_left as usize));
            // Half a word is none.
            if cut == Cut::English {
                text.truncate(cut.last(&text, 0).unwrap_or(0));
            }
        }
        bytes_left = bytes_left.saturating_sub(length);
        size += text.len();
        batch.push(text);
        if size >= BATCH {
            done += size as u64;
            size = 0;
            count(&mut batch);
            progress(done);
        }
        Ok(())
    })?;
    count(&mut batch);
    progress(done + size as u64);
    Ok(())
}

/// `fraction` of `count`, as in the split of the tokens, and at least one.
fn portion(count: u64, fraction: f64) -> u64 {
    ((count as f64 * fraction) as u64).max(1)
}

/// Bytes of text and documents in `source`.
fn measure(source: &Located) -> Result<(u64, u64), DataError> {
    let (mut bytes, mut documents) = (0, 0);
    read(source, Cut::Anywhere, &mut |piece| {
        bytes += piece.text.len() as u64;
        documents += u64::from(piece.first);
        Ok(())
    })?;
    Ok((bytes, documents))
}

fn count(batch: &mut Vec<String>, counts: &mut HashMap<String, u64>) {
    let new = batch
        .par_iter()
        .fold(HashMap::new, |mut counts: HashMap<String, u64>, text| {
            for word in words(text) {
                match counts.get_mut(word) {
                    Some(count) => *count += 1,
                    None => _ = counts.insert(word.to_owned(), 1),
                }
            }
            counts
        })
        .reduce(HashMap::new, merge);
    batch.clear();
    *counts = merge(std::mem::take(counts), new);
    if counts.len() > DISTINCT {
        counts.retain(|_, count| *count > 1);
    }
}

fn merge(a: HashMap<String, u64>, b: HashMap<String, u64>) -> HashMap<String, u64> {
    let (mut large, small) = if a.len() < b.len() { (b, a) } else { (a, b) };
    for (word, count) in small {
        *large.entry(word).or_insert(0) += count;
    }
    large
}

/// GPT-2's pieces of a word, in the byte alphabet.
fn pre_tokenize(word: &str) -> Vec<String> {
    let mut text = PreTokenizedString::from(word);
    // It fails for no text.
    let _ = ByteLevel::new(false, true, true).pre_tokenize(&mut text);
    let splits = text.get_splits(OffsetReferential::Original, OffsetType::Byte);
    splits.into_iter().map(|(piece, ..)| piece.to_owned()).collect()
}
