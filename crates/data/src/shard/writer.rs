//! Writes shards: reads a batch of text, encodes it in parallel, and writes its tokens.

use std::path::Path;

use rayon::prelude::*;

use super::card::{CARD, Card, CardFile, CardSource, CardTokenizer, HeldOut, Settings};
use super::folder::{TOKENIZER, write_companion_files, write_file};
use super::request::{Report, ShardEvent, ShardRequest};
use super::split_writer::SplitWriter;
use crate::cut_points::CutPoints;
use crate::error::{DataError, Result};
use crate::progress::Progress;
use crate::source::{BATCH_BYTES, BatchCollector, LocatedSource, TextPiece, read, read_file};
use crate::split_name::SplitName;
use crate::tokenizer::TextTokenizer;

/// The assignment of a source's documents to splits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum SplitAssignment {
    All(SplitName),
    /// This fraction of the documents, drawn at random, is validation.
    Drawn(f64),
    /// The characters of the only document from this one on are validation.
    CharactersFrom(u64),
}

/// A source, and the splits that its text goes to.
pub(super) struct Pass<'a> {
    pub(super) source: &'a LocatedSource,
    pub(super) assignment: SplitAssignment,
}

/// Text that goes to one split.
struct SplitPiece {
    split: SplitName,
    piece: TextPiece,
    /// The number of the document in the source, from 0.
    document: u64,
}

pub(super) struct ShardWriter<'a> {
    pub(super) request: &'a ShardRequest<'a>,
    pub(super) settings: &'a Settings,
    pub(super) tokenizer: &'a TextTokenizer,
    pub(super) report: &'a Report<'a>,
    pub(super) stage: &'a Path,
    pub(super) end_of_text: Option<u32>,
    pub(super) train: SplitWriter<'a>,
    pub(super) validation: SplitWriter<'a>,
    pub(super) bytes_total: u64,
    pub(super) documents: u64,
    pub(super) text_bytes: u64,
    /// True for each id that occurs.
    pub(super) used: Vec<bool>,
    /// The split of the last document, if its end of text is still to be written.
    pub(super) unended: Option<SplitName>,
    /// True once the limit of the request is reached.
    pub(super) is_at_limit: bool,
}

impl ShardWriter<'_> {
    /// Writes all shards and the card. The last of `passes` reads the training source.
    pub(super) fn run(&mut self, passes: &[Pass<'_>]) -> Result<Card> {
        for pass in passes {
            self.write_pass(pass)?;
            pass.source.check_unchanged()?;
        }
        self.complete(passes)
    }

    fn write_pass(&mut self, pass: &Pass<'_>) -> Result<()> {
        let (cut, preparing) = (self.tokenizer.cut_points(), self.report);
        let mut write = |batch: Vec<SplitPiece>| self.write_batch(batch, pass.source);
        let mut batch = BatchCollector::new(BATCH_BYTES, &mut write);
        let mut assigned = AssignedText { assignment: pass.assignment, documents: 0, characters: 0 };
        let mut read_all = || {
            for file in 0..pass.source.files.len() {
                pass.source.path(file, &|part| preparing(ShardEvent::Preparing(Progress::Downloading(part))))?;
                read_file(pass.source, file, cut, &mut |piece| assigned.assign(piece, &mut batch))?;
                // At the limit, the next file is not downloaded.
                if pass.source.hub.is_some() {
                    batch.flush()?;
                }
            }
            batch.flush()
        };
        let done = read_all();
        // Reading ends with an error at the limit.
        if self.is_at_limit { Ok(()) } else { done.and_then(|()| self.end_document(pass.source)) }
    }

    fn write_batch(&mut self, batch: Vec<SplitPiece>, source: &LocatedSource) -> Result<()> {
        let encode = |piece: &SplitPiece| self.tokenizer.encode_document(&piece.piece.text);
        let encoded: Vec<_> = batch.par_iter().map(encode).collect();
        for (piece, tokens) in batch.into_iter().zip(encoded) {
            self.write_piece(&piece, tokens.map_err(|error| error.within(source.split.key()))?, source)?;
            if self.is_at_limit {
                return Err(DataError::setting(source.split.key(), "the limit is reached"));
            }
        }
        let (bytes_done, tokens) = (self.text_bytes, self.train.tokens + self.validation.tokens);
        // The text of a compressed column is longer than its file.
        (self.report)(ShardEvent::Written { bytes_done, bytes_total: self.bytes_total.max(bytes_done), tokens });
        Ok(())
    }

    fn write_piece(&mut self, text: &SplitPiece, mut tokens: Vec<u32>, source: &LocatedSource) -> Result<()> {
        let is_training = source.split == SplitName::Train;
        if text.piece.starts_document {
            self.end_document(source)?;
            if is_training && self.request.max_rows.is_some_and(|rows| text.document >= rows) {
                self.is_at_limit = true;
            }
            if self.is_at_limit {
                return Ok(());
            }
            match self.end_of_text {
                Some(end) if !self.request.format.appends_end() => tokens.insert(0, end),
                _ => self.unended = Some(text.split),
            }
        }
        let all = tokens.len();
        self.write_tokens(text.split, &mut tokens, is_training)?;
        // A piece that is cut counts with its share of the bytes.
        let bytes = text.piece.text.len() as u128 * tokens.len() as u128 / all.max(1) as u128;
        self.text_bytes += bytes as u64;
        self.documents += u64::from(text.piece.starts_document && !tokens.is_empty());
        Ok(())
    }

    /// Writes the end of text after the last document, in the formats that have it there.
    fn end_document(&mut self, source: &LocatedSource) -> Result<()> {
        let is_training = source.split == SplitName::Train;
        match (self.unended.take(), self.end_of_text) {
            (Some(split), Some(end)) if self.request.format.appends_end() => {
                self.write_tokens(split, &mut vec![end], is_training)
            }
            _ => Ok(()),
        }
    }

    /// Writes `tokens`, and cuts them where the limit is.
    fn write_tokens(&mut self, split: SplitName, tokens: &mut Vec<u32>, is_training: bool) -> Result<()> {
        if let Some(limit) = self.request.max_tokens.filter(|_| is_training) {
            let has_source = self.settings.held_out == HeldOut::Source;
            let written = self.train.tokens + if has_source { 0 } else { self.validation.tokens };
            let left = limit.saturating_sub(written);
            self.is_at_limit = left <= tokens.len() as u64;
            tokens.truncate(left as usize);
        }
        for &token in tokens.iter() {
            if let Some(is_used) = self.used.get_mut(token as usize) {
                *is_used = true;
            }
        }
        let mut rest = tokens.as_slice();
        if split == SplitName::Validation {
            return self.validation.write(rest);
        }
        if self.settings.held_out == HeldOut::FirstShard {
            let room = self.request.shard_tokens.saturating_sub(self.validation.tokens);
            let (first, others) = rest.split_at(rest.len().min(room as usize));
            self.validation.write(first)?;
            rest = others;
        }
        self.train.write(rest)
    }

    /// Completes the last shards and writes the files beside them.
    fn complete(&mut self, passes: &[Pass<'_>]) -> Result<Card> {
        self.check_splits()?;
        self.validation.finish()?;
        self.train.finish()?;
        let shards = [&self.validation.shards[..], &self.train.shards].concat();
        let (files, has_tokenizer) = write_companion_files(self.request, self.stage, self.tokenizer)?;
        let position = if self.request.format.appends_end() { "after" } else { "before" };
        let card = Card {
            format: 1,
            settings: self.settings.clone(),
            dtype: self.request.format.dtype().to_owned(),
            tokens: shards.iter().map(|shard| shard.tokens).sum(),
            documents: self.documents,
            text_bytes: self.text_bytes,
            tokenizer: CardTokenizer {
                hash: self.tokenizer.hash().to_owned(),
                vocab_size: self.tokenizer.vocab_size() as u64,
                used: self.used.iter().filter(|is_used| **is_used).count() as u64,
                highest: self.used.iter().rposition(|is_used| *is_used).map_or(0, |highest| highest as u32),
                end_of_text: self.end_of_text,
                end_of_text_is: self.end_of_text.map(|_| position.to_owned()),
                file: has_tokenizer.then(|| TOKENIZER.to_owned()),
            },
            sources: passes.iter().map(|pass| card_source(pass.source)).collect(),
            shards,
            files,
        };
        let path = self.stage.join(CARD);
        let json = serde_json::to_string_pretty(&card).map_err(|error| DataError::file(&path, error.to_string()))?;
        write_file(&path, (json + "\n").as_bytes())?;
        Ok(card)
    }

    /// # Errors
    /// If a split that the request asks for has no tokens.
    fn check_splits(&self) -> Result<()> {
        let documents = self.documents;
        if documents == 0 {
            return Err(DataError::setting("data.train", "no text at all"));
        }
        let (key, message) = match self.settings.held_out {
            HeldOut::FirstShard if self.train.tokens == 0 => {
                let tokens = self.validation.tokens;
                let fewer = (tokens / 10).max(1);
                let message = format!(
                    "the first shard is for validation, and it has room for all {tokens} tokens; use fewer per shard, such as {fewer}, or hold nothing out"
                );
                ("shard_tokens", message)
            }
            HeldOut::Fraction(_) if self.is_at_limit && self.validation.tokens == 0 => {
                let message = "the limit is reached before any text that is held out; raise it, or hold nothing out";
                ("held_out", message.to_owned())
            }
            HeldOut::Fraction(fraction) if self.validation.tokens == 0 => {
                let message = format!(
                    "a fraction of {fraction} of {documents} documents, which are drawn one by one, held out none; give a larger one"
                );
                ("held_out", message)
            }
            _ => return Ok(()),
        };
        Err(DataError::setting(key, message))
    }
}

/// Assigns pieces of a source to splits, in order.
struct AssignedText {
    assignment: SplitAssignment,
    documents: u64,
    characters: u64,
}

impl AssignedText {
    fn assign(&mut self, mut piece: TextPiece, batch: &mut BatchCollector<'_, SplitPiece>) -> Result<()> {
        self.documents += u64::from(piece.starts_document);
        let document = self.documents.saturating_sub(1);
        let split = match self.assignment {
            SplitAssignment::All(split) => split,
            SplitAssignment::Drawn(fraction) if is_drawn(document, fraction) => SplitName::Validation,
            SplitAssignment::Drawn(_) => SplitName::Train,
            SplitAssignment::CharactersFrom(first) => {
                let left = first.saturating_sub(self.characters);
                self.characters += piece.text.chars().count() as u64;
                // Training text ends within the piece.
                if left > 0
                    && let Some((at, _)) = piece.text.char_indices().nth(left as usize)
                {
                    let rest = TextPiece { text: piece.text.split_off(at), starts_document: false };
                    push(batch, SplitPiece { split: SplitName::Train, piece, document })?;
                    return push(batch, SplitPiece { split: SplitName::Validation, piece: rest, document });
                }
                if left > 0 { SplitName::Train } else { SplitName::Validation }
            }
        };
        push(batch, SplitPiece { split, piece, document })
    }
}

fn push(batch: &mut BatchCollector<'_, SplitPiece>, piece: SplitPiece) -> Result<()> {
    let bytes = piece.piece.text.len();
    batch.push(piece, bytes)
}

/// The number of characters of `source`, a single text.
pub(super) fn count_characters(source: &LocatedSource) -> Result<u64> {
    let mut count = 0;
    read(source, CutPoints::Anywhere, &mut |piece| {
        count += piece.text.chars().count() as u64;
        Ok(())
    })?;
    Ok(count)
}

/// True if document `index` is in the `fraction` that is held out. Each document has its own draw, which does not depend on the number of
/// documents.
fn is_drawn(index: u64, fraction: f64) -> bool {
    // The finalizer of MurmurHash3's 64-bit variant, which mixes all bits.
    let mut x = index.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^= x >> 33;
    // 53 bits: what f64 holds exactly.
    ((x >> 11) as f64) < fraction * (1_u64 << 53) as f64
}

fn card_source(source: &LocatedSource) -> CardSource {
    let files = source.files.iter().map(|file| CardFile {
        name: file.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        bytes: file.size,
        blake3: source.hub.is_none().then(|| file.hash.clone()),
        etag: source.hub.is_some().then(|| file.hash.clone()),
    });
    let hub = source.hub.as_ref().map(|split| split.pinned.clone());
    CardSource { split: source.split.short().to_owned(), hub, files: files.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_the_fraction_is_drawn() {
        for fraction in [0.0, 0.0005, 0.1, 0.5, 1.0] {
            let n = 200_000;
            let drawn = (0..n).filter(|&i| is_drawn(i, fraction)).count() as f64;
            // Five standard deviations of a binomial.
            let (mean, deviation) = (n as f64 * fraction, (n as f64 * fraction * (1.0 - fraction)).sqrt());
            assert!((drawn - mean).abs() <= 5.0 * deviation, "{fraction}: {drawn}");
        }
        let first: Vec<u64> = (0..60).filter(|&i| is_drawn(i, 0.1)).collect();
        assert_eq!(first, (0..60).filter(|&i| is_drawn(i, 0.1)).collect::<Vec<_>>());
    }
}
