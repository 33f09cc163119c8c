//! Writes shards: one thread reads, the pool encodes a batch while the batch before it is written, and the state is saved.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::batches::{Pass, TextPart, TextPosition, read_batches};
use super::card::{CARD, Card, CardFile, CardShard, CardSource, CardTokenizer, HeldOut, Settings};
use super::folder::{TOKENIZER, remove_if_there, write_companion_files, write_json};
use super::request::{Report, ShardEvent, ShardRequest};
use super::split_writer::SplitWriter;
use super::state::{ResumeState, STATE};
use super::text_size::TextSizes;
use crate::error::{DataError, Result};
use crate::source::LocatedSource;
use crate::split_name::SplitName;
use crate::tokenizer::TextTokenizer;
use runner_threads::threads;

/// The interval between two reports while a file is waited for.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);

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
    sizes: TextSizes,
    /// Tokens of the training source in complete shards.
    complete_tokens: u64,
    /// True once the limit of the request is reached.
    is_at_limit: bool,
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
        let is_counted = |shard: &&CardShard| comes_from_training(&state.settings, shard);
        let complete_tokens = state.shards.iter().filter(is_counted).map(|shard| shard.tokens).sum();
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
            sizes: TextSizes::new(passes),
            complete_tokens,
            is_at_limit: false,
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
            self.write_pass(index, pass)?;
            pass.source.check_unchanged()?;
        }
        self.complete()
    }

    fn write_pass(&mut self, index: usize, pass: &Pass<'_>) -> Result<()> {
        let (cut, from) = (self.tokenizer.cut_points(), self.state.position);
        let size = rayon::current_num_threads().clamp(4, 32) << 20;
        let (sender, receiver) = sync_channel::<Result<Vec<TextPart>>>(1);
        std::thread::scope(|scope| {
            let read = move || {
                let mut take = |batch| sender.send(Ok(batch)).map_err(|_| DataError::file(Path::new(""), "stopped"));
                if let Err(error) = read_batches(pass.source, cut, pass.assignment, from, size, &mut take) {
                    // The receiver is gone if it stopped first, with a separate error.
                    let _ = sender.send(Err(error));
                }
            };
            threads::spawn_scoped(scope, "texts", read).map_err(|error| DataError::Threads(error.to_string()))?;
            let written = self.write_batches(receiver, index, pass);
            // After an error, or at the limit, the reader may still wait for a file.
            if let Some(split) = &pass.source.hub {
                split.downloads.stop();
            }
            written
        })
    }

    #[expect(clippy::needless_pass_by_value, reason = "dropped at the end, which stops the sender")]
    fn write_batches(
        &mut self,
        receiver: Receiver<Result<Vec<TextPart>>>,
        index: usize,
        pass: &Pass<'_>,
    ) -> Result<()> {
        let (tokenizer, place) = (self.tokenizer, pass.source.split.key());
        let encode = |part: TextPart| {
            let tokens = tokenizer.encode_document(&part.text).map_err(|error| error.within(place))?;
            Ok((part, tokens))
        };
        let mut encoded = Vec::new();
        while !self.is_at_limit {
            match receiver.recv_timeout(REPORT_INTERVAL) {
                Ok(Ok(batch)) => {
                    let before = std::mem::take(&mut encoded);
                    let encode_batch = || batch.into_par_iter().map(encode).collect::<Result<Vec<_>>>();
                    let (next, written) = rayon::join(encode_batch, || self.write_parts(before, index, pass));
                    written?;
                    encoded = next?;
                }
                // Text that was read before a download failed need not be read again.
                Ok(Err(error)) => {
                    self.write_parts(encoded, index, pass)?;
                    return if self.is_at_limit { Ok(()) } else { Err(error) };
                }
                // The next file is downloaded.
                Err(RecvTimeoutError::Timeout) => self.write_parts(std::mem::take(&mut encoded), index, pass)?,
                // The channel closes after the last batch.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.write_parts(encoded, index, pass)
    }

    fn write_parts(&mut self, parts: Vec<(TextPart, Vec<u32>)>, index: usize, pass: &Pass<'_>) -> Result<()> {
        for (part, tokens) in parts {
            if self.is_at_limit {
                break;
            }
            self.sizes.add_file(index, pass, part.file);
            self.write_part(&part, tokens, pass)?;
        }
        self.report_progress(pass);
        Ok(())
    }

    fn report_progress(&self, pass: &Pass<'_>) {
        let (bytes_done, bytes, tokens) = (self.state.counts.text_bytes, self.bytes, self.tokens);
        let mut bytes_total = self.sizes.total();
        // The text up to the limit is about as much as the text so far for each token or document.
        let limits = [
            (self.request.max_tokens, self.written_tokens(pass)),
            (self.request.max_rows, self.state.position.document),
        ];
        for (limit, done) in limits.into_iter().filter_map(|(limit, done)| Some((limit?, done))) {
            if done > 0 {
                bytes_total = bytes_total.min((bytes_done as f64 * limit as f64 / done as f64) as u64);
            }
        }
        let bytes_total = bytes_total.max(bytes_done);
        let download = pass.source.hub.as_ref().and_then(|split| split.downloads.progress());
        (self.report)(ShardEvent::Written { bytes_done, bytes_total, tokens, bytes, download });
    }

    /// The tokens of the training source in all shards, complete or not.
    fn written_tokens(&self, pass: &Pass<'_>) -> u64 {
        if pass.source.split != SplitName::Train {
            return 0;
        }
        let has_source = self.state.settings.held_out == HeldOut::Source;
        let validation = if has_source { 0 } else { self.validation.open_tokens() };
        self.complete_tokens + self.train.open_tokens() + validation
    }

    fn write_part(&mut self, part: &TextPart, mut tokens: Vec<u32>, pass: &Pass<'_>) -> Result<()> {
        let is_training = pass.source.split == SplitName::Train;
        if is_training && self.request.max_rows.is_some_and(|rows| part.document >= rows) {
            self.is_at_limit = true;
            return Ok(());
        }
        let mut text_bytes = part.text.len() as u64;
        let mut ends_document = part.ends_document;
        let appends_end = self.request.format.appends_end();
        match self.end_of_text {
            Some(end) if part.starts_document && !appends_end => tokens.insert(0, end),
            Some(end) if part.ends_document && appends_end => tokens.push(end),
            _ => {}
        }
        let (start, before) = (part.start(), self.state.position);
        let mut written = 0;
        if (start.document, start.offset) == (before.document, before.offset) {
            written = (before.tokens as usize).min(tokens.len());
        }
        if let Some(limit) = self.request.max_tokens.filter(|_| is_training) {
            let left = limit.saturating_sub(self.written_tokens(pass));
            if left <= (tokens.len() - written) as u64 {
                let (kept, all) = (written + left as usize, tokens.len());
                tokens.truncate(kept);
                // A part that is cut counts with its share of the bytes, and a document that is cut counts as one.
                text_bytes = (u128::from(text_bytes) * kept as u128 / all.max(1) as u128) as u64;
                ends_document = kept > 0;
                self.is_at_limit = true;
            }
        }
        let mut ends_with_shard = false;
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
                ends_with_shard = written == tokens.len();
                if !ends_with_shard {
                    self.state.position = TextPosition { tokens: written as u64, ..start };
                    self.save()?;
                }
            }
        }
        self.bytes += text_bytes;
        self.state.counts.text_bytes += text_bytes;
        self.state.counts.documents += u64::from(ends_document);
        self.state.position = part.end();
        if ends_with_shard || self.request.format.one_file() && self.unsaved_tokens >= self.request.shard_tokens {
            self.save()?;
        }
        Ok(())
    }

    fn add_shard(&mut self, shard: CardShard) {
        (self.report)(ShardEvent::Whole(&shard));
        if comes_from_training(&self.state.settings, &shard) {
            self.complete_tokens += shard.tokens;
        }
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
        let (files, has_tokenizer) = write_companion_files(self.request, self.tokenizer)?;
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
            files,
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
                    "the first shard is for validation, and it has room for all {tokens} tokens; use fewer per shard, such as {}, or hold nothing out",
                    (tokens / 10).max(1)
                );
                DataError::setting("shard_tokens", message)
            }
            HeldOut::Fraction(_) if self.is_at_limit && is_empty(SplitName::Validation, &self.validation) => {
                let message = "the limit is reached before any text that is held out; raise it, or hold nothing out";
                DataError::setting("held_out", message)
            }
            HeldOut::Fraction(fraction) if is_empty(SplitName::Validation, &self.validation) => {
                let message = format!(
                    "a fraction of {fraction} of {documents} documents, which are drawn one by one, held out none; give a larger one"
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

/// True if the tokens of `shard` are text of the training source.
fn comes_from_training(settings: &Settings, shard: &CardShard) -> bool {
    shard.split == SplitName::Train.short() || settings.held_out != HeldOut::Source
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
