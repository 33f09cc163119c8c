//! Writes shards: one thread reads, the pool encodes a batch while the batch before it is written, and the state is saved.

use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use rayon::prelude::*;

use super::batches::{SplitAssignment, TextPart, TextPosition, read_batches};
use super::card::{CARD, Card, CardFile, CardShard, CardSource, CardTokenizer, HeldOut};
use super::folder::{TOKENIZER, remove_if_there, write_companion_files, write_json};
use super::request::{Report, ShardEvent, ShardRequest};
use super::split_writer::SplitWriter;
use super::state::{ResumeState, STATE};
use crate::error::{DataError, Result};
use crate::fingerprint::SourceFile;
use crate::source::{DocumentFormat, LocatedSource, parquet_columns};
use crate::split_name::SplitName;
use crate::tokenizer::TextTokenizer;

/// A source, and the splits that its text goes to.
pub(super) struct Pass<'a> {
    pub(super) source: &'a LocatedSource,
    pub(super) assignment: SplitAssignment,
}

pub(super) struct ShardWriter<'a> {
    request: &'a ShardRequest<'a>,
    passes: &'a [Pass<'a>],
    tokenizer: &'a TextTokenizer,
    report: &'a Report<'a>,
    end_of_text: Option<u32>,
    pub(super) state: ResumeState,
    train: SplitWriter<'a>,
    validation: SplitWriter<'a>,
    /// Tokens written since the state was saved.
    unsaved_tokens: u64,
    pub(super) started: Instant,
    /// Bytes of text and tokens that this process has written.
    pub(super) bytes: u64,
    pub(super) tokens: u64,
    bytes_total: u64,
}

impl<'a> ShardWriter<'a> {
    /// Continues at `state`. The last pass reads the training source.
    pub(super) fn new(
        request: &'a ShardRequest<'a>,
        passes: &'a [Pass<'a>],
        tokenizer: &'a TextTokenizer,
        state: ResumeState,
        report: &'a Report<'a>,
    ) -> Result<Self> {
        // In nanoGPT's files nothing separates a single text; the other formats mark the start of every document.
        let is_single = passes.last().is_some_and(|pass| pass.source.is_single_text());
        Ok(Self {
            request,
            passes,
            tokenizer,
            report,
            end_of_text: tokenizer.end_of_text().filter(|_| !(is_single && request.format.appends_end())),
            train: SplitWriter::new(request, SplitName::Train, &state)?,
            validation: SplitWriter::new(request, SplitName::Validation, &state)?,
            state,
            unsaved_tokens: 0,
            started: Instant::now(),
            bytes: 0,
            tokens: 0,
            bytes_total: passes.iter().map(|pass| text_bytes(pass.source)).sum(),
        })
    }

    /// Writes all shards and the card.
    pub(super) fn run(&mut self) -> Result<Card> {
        self.save()?;
        self.started = Instant::now();
        for (index, pass) in self.passes.iter().enumerate().skip(self.state.pass) {
            if index > self.state.pass {
                self.state.pass = index;
                self.state.position = TextPosition::default();
            }
            self.write_pass(pass)?;
            pass.source.check_unchanged()?;
        }
        self.complete()
    }

    fn write_pass(&mut self, pass: &Pass<'_>) -> Result<()> {
        let (cut, from) = (self.tokenizer.cut_points(), self.state.position);
        let size = rayon::current_num_threads().clamp(4, 32) << 20;
        let (sender, receiver) = sync_channel::<Result<Vec<TextPart>>>(1);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut take = |batch| sender.send(Ok(batch)).map_err(|_| DataError::file(Path::new(""), "stopped"));
                if let Err(error) = read_batches(pass.source, cut, pass.assignment, from, size, &mut take) {
                    // The receiver is gone if it stopped first, with an error of its own.
                    let _ = sender.send(Err(error));
                }
            });
            self.write_batches(receiver, pass.source.split.key())
        })
    }

    #[expect(clippy::needless_pass_by_value, reason = "dropped at the end, which stops the sender")]
    fn write_batches(&mut self, receiver: Receiver<Result<Vec<TextPart>>>, place: &'static str) -> Result<()> {
        let tokenizer = self.tokenizer;
        let encode = |part: TextPart| {
            let tokens = tokenizer.encode_document(&part.text).map_err(|error| error.within(place))?;
            Ok((part, tokens))
        };
        let mut encoded = Vec::new();
        // The channel closes after the last batch.
        while let Ok(batch) = receiver.recv() {
            let batch = batch?;
            let before = std::mem::take(&mut encoded);
            let encode_batch = || batch.into_par_iter().map(encode).collect::<Result<Vec<_>>>();
            let (next, written) = rayon::join(encode_batch, || self.write_parts(before));
            written?;
            encoded = next?;
        }
        self.write_parts(encoded)
    }

    fn write_parts(&mut self, parts: Vec<(TextPart, Vec<u32>)>) -> Result<()> {
        for (part, tokens) in parts {
            self.write_part(&part, tokens)?;
        }
        let (bytes_done, bytes, tokens) = (self.state.counts.text_bytes, self.bytes, self.tokens);
        let bytes_total = self.bytes_total.max(bytes_done);
        (self.report)(ShardEvent::Written { bytes_done, bytes_total, tokens, bytes });
        Ok(())
    }

    fn write_part(&mut self, part: &TextPart, mut tokens: Vec<u32>) -> Result<()> {
        let text_bytes = part.text.len() as u64;
        let appends_end = self.request.format.appends_end();
        match self.end_of_text {
            Some(end) if part.starts_document && !appends_end => tokens.insert(0, end),
            Some(end) if part.ends_document && appends_end => tokens.push(end),
            _ => {}
        }
        let start = TextPosition { document: part.document, offset: part.offset, tokens: 0 };
        let mut written = 0;
        if start == (TextPosition { tokens: 0, ..self.state.position }) {
            written = (self.state.position.tokens as usize).min(tokens.len());
        }
        while written < tokens.len() {
            let is_first = self.state.settings.held_out == HeldOut::FirstShard && self.state.shards.is_empty();
            let writer = match part.split {
                SplitName::Train if !is_first => &mut self.train,
                _ => &mut self.validation,
            };
            let (taken, complete) = writer.write(&tokens[written..])?;
            self.state.counts.used.add(&tokens[written..written + taken]);
            written += taken;
            self.tokens += taken as u64;
            self.unsaved_tokens += taken as u64;
            if let Some(shard) = complete {
                self.add_shard(shard);
                self.state.position = TextPosition { tokens: written as u64, ..start };
                self.save()?;
            }
        }
        self.bytes += text_bytes;
        self.state.counts.text_bytes += text_bytes;
        self.state.counts.documents += u64::from(part.ends_document);
        self.state.position = if part.ends_document {
            TextPosition { document: part.document + 1, offset: 0, tokens: 0 }
        } else {
            TextPosition { offset: part.offset + text_bytes, ..start }
        };
        if self.request.format.one_file() && self.unsaved_tokens >= self.request.shard_tokens {
            self.save()?;
        }
        Ok(())
    }

    fn add_shard(&mut self, shard: CardShard) {
        (self.report)(ShardEvent::Whole(&shard));
        self.state.shards.push(shard);
    }

    /// Makes everything that was written durable, and saves the state.
    fn save(&mut self) -> Result<()> {
        if self.request.format.one_file() {
            let open = [self.validation.sync()?, self.train.sync()?];
            self.state.open = open.into_iter().flatten().collect();
        }
        self.unsaved_tokens = 0;
        write_json(&self.request.folder.join(STATE), &self.state)
    }

    /// Completes the last shards and writes the card.
    fn complete(&mut self) -> Result<Card> {
        self.check_splits()?;
        for shard in [self.validation.finish()?, self.train.finish()?].into_iter().flatten() {
            self.add_shard(shard);
        }
        self.state.open.clear();
        let mut shards = self.state.shards.clone();
        shards.sort_by_key(|shard| (shard.split != SplitName::Validation.short(), shard.file.clone()));
        let has_tokenizer = write_companion_files(self.request, self.tokenizer)?;
        let counts = &self.state.counts;
        let position = if self.request.format.appends_end() { "after" } else { "before" };
        let card = Card {
            format: 1,
            settings: self.state.settings.clone(),
            dtype: self.request.format.dtype().to_owned(),
            tokens: shards.iter().map(|shard| shard.tokens).sum(),
            documents: counts.documents,
            text_bytes: counts.text_bytes,
            tokenizer: CardTokenizer {
                hash: self.tokenizer.hash().to_owned(),
                vocab_size: self.tokenizer.vocab_size() as u64,
                used: counts.used.count(),
                highest: counts.used.highest(),
                end_of_text: self.end_of_text,
                end_of_text_is: self.end_of_text.map(|_| position.to_owned()),
                file: has_tokenizer.then(|| TOKENIZER.to_owned()),
            },
            sources: self.passes.iter().map(|pass| card_source(pass.source)).collect(),
            shards,
        };
        write_json(&self.request.folder.join(CARD), &card)?;
        remove_if_there(&self.request.folder.join(STATE))?;
        Ok(card)
    }

    /// Checks that each split that the request asks for has tokens. Otherwise removes the shards that were written.
    ///
    /// # Errors
    /// If a split has none.
    fn check_splits(&mut self) -> Result<()> {
        let documents = self.state.counts.documents;
        if documents == 0 {
            return Err(DataError::setting("data.train", "no text at all"));
        }
        let is_empty =
            |split, writer: &SplitWriter<'_>| writer.open_tokens() == 0 && self.state.shards_of(split).next().is_none();
        let error = match self.state.settings.held_out {
            HeldOut::FirstShard if is_empty(SplitName::Train, &self.train) => {
                let whole: u64 = self.state.shards.iter().map(|shard| shard.tokens).sum();
                let tokens = whole + self.validation.open_tokens();
                let message = format!(
                    "the first shard is validation, and all {tokens} tokens are in it: give fewer, such as {}, or hold nothing out",
                    (tokens / 10).max(1)
                );
                DataError::setting("shard_tokens", message)
            }
            HeldOut::Fraction(fraction) if is_empty(SplitName::Validation, &self.validation) => {
                let message = format!(
                    "a fraction of {fraction} of {documents} documents is less than one document; give a larger one, such as 0.1"
                );
                DataError::setting("held_out", message)
            }
            _ => return Ok(()),
        };
        for shard in self.state.shards.drain(..) {
            remove_if_there(&self.request.folder.join(shard.file))?;
        }
        self.state.open.clear();
        Err(error)
    }
}

/// The approximate size of the text of `source`. Text in a compressed column is longer than its file.
fn text_bytes(source: &LocatedSource) -> u64 {
    let DocumentFormat::Parquet(text) = &source.documents else { return source.bytes() };
    let bytes = |file: &SourceFile| {
        let (columns, _) = parquet_columns(&file.path).ok()?;
        let bytes = |field: &str| columns.iter().find(|column| column.name == field).map(|column| column.bytes);
        text.fields().into_iter().map(bytes).sum::<Option<u64>>()
    };
    // A file without the column is an error as soon as it is read.
    source.files.iter().map(|file| bytes(file).unwrap_or(file.size)).sum()
}

fn card_source(source: &LocatedSource) -> CardSource {
    let files = source.files.iter().map(|file| CardFile {
        name: file.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        bytes: file.size,
        blake3: file.hash.clone(),
    });
    CardSource { split: source.split.short().to_owned(), files: files.collect() }
}
