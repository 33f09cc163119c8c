//! The work itself: a thread reads, the pool encodes one batch while the one before is written, and what is done is noted.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use rayon::prelude::*;

use super::beside;
use super::card::{CARD, Card, CardFile, CardSource, CardTokenizer};
use super::file::{failed, partial};
use super::format::short;
use super::job::{Report, ShardEvent, ShardRequest, TOKENIZER};
use super::split::HeldOut;
use super::state::{STATE, Side, State};
use super::stream::ShardStream;
use super::units::{self, Division, Place, Unit};
use crate::error::DataError;
use crate::fingerprint::SourceFile;
use crate::inspect::column_bytes;
use crate::progress::SplitName;
use crate::source::{Documents, Located};
use crate::tokenizer::TextTokenizer;

/// A source and where its text goes.
pub(super) struct Pass<'a> {
    pub(super) source: &'a Located,
    pub(super) division: Division,
}

pub(super) struct Job<'a> {
    request: &'a ShardRequest<'a>,
    tokenizer: &'a TextTokenizer,
    report: &'a Report<'a>,
    end: Option<u32>,
    pub(super) state: State,
    /// Training and validation.
    train: ShardStream,
    validation: ShardStream,
    /// Tokens since progress was made safe.
    unsafe_tokens: u64,
    pub(super) started: Option<Instant>,
    /// What this process has written.
    pub(super) bytes: u64,
    pub(super) tokens: u64,
    bytes_total: u64,
}

impl<'a> Job<'a> {
    pub(super) fn new(
        request: &'a ShardRequest<'a>,
        tokenizer: &'a TextTokenizer,
        state: State,
        single: bool,
        report: &'a Report<'a>,
    ) -> Result<Self, DataError> {
        let stream = |split| {
            let settings = &state.settings;
            let first = u64::from(split == SplitName::Train && settings.held_out != HeldOut::Nothing);
            let whole = state.shards.iter().filter(|shard| shard.split == short(split)).count() as u64;
            let (name, size) = (&settings.name, settings.shard_tokens);
            ShardStream::new(request.folder, name, request.format, split, size, first, whole)
        };
        let (mut train, mut validation) = (stream(SplitName::Train), stream(SplitName::Validation));
        for open in &state.open {
            let stream = if open.split == Side::Train { &mut train } else { &mut validation };
            stream.reopen(open)?;
        }
        // One text alone is not separated from anything in nanoGPT's files; the others mark where every document begins.
        let end = tokenizer.eot().filter(|_| !(single && request.format.appends_end()));
        let (started, unsafe_tokens, bytes, tokens, bytes_total) = (None, 0, 0, 0, 0);
        Ok(Self {
            request,
            tokenizer,
            report,
            end,
            state,
            train,
            validation,
            unsafe_tokens,
            started,
            bytes,
            tokens,
            bytes_total,
        })
    }

    pub(super) fn run(&mut self, passes: &[Pass<'_>]) -> Result<(), DataError> {
        self.save()?;
        self.bytes_total = passes.iter().map(|pass| text_bytes(pass.source)).sum();
        self.started = Some(Instant::now());
        for (index, pass) in passes.iter().enumerate().skip(self.state.pass) {
            if index > self.state.pass {
                self.state.pass = index;
                self.state.place = Place::default();
            }
            self.pass(pass)?;
            pass.source.check_unchanged()?;
        }
        Ok(())
    }

    fn pass(&mut self, pass: &Pass<'_>) -> Result<(), DataError> {
        let (cut, from) = (self.tokenizer.cut(), self.state.place);
        let size = rayon::current_num_threads().clamp(4, 32) << 20;
        let (sender, receiver) = sync_channel::<Result<Vec<Unit>, DataError>>(1);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut take = |batch| sender.send(Ok(batch)).map_err(|_| DataError::file(Path::new(""), "stopped"));
                if let Err(error) = units::batches(pass.source, cut, pass.division, from, size, &mut take) {
                    // Nobody listens if the other side stopped first, with an error of its own.
                    let _ = sender.send(Err(error));
                }
            });
            // Taken along, so that it goes when this side stops, and the other side stops too.
            self.receive(receiver, pass.source.origin.key())
        })
    }

    #[expect(clippy::needless_pass_by_value, reason = "dropped at the end, which stops the sender")]
    fn receive(
        &mut self,
        receiver: Receiver<Result<Vec<Unit>, DataError>>,
        place: &'static str,
    ) -> Result<(), DataError> {
        let tokenizer = self.tokenizer;
        let mut ready: Vec<(Unit, Vec<u32>)> = Vec::new();
        loop {
            let batch = receiver.recv().ok().transpose()?;
            let done = batch.is_none();
            let encode = |mut unit: Unit| {
                let text = std::mem::take(&mut unit.text);
                let mut tokens = Vec::with_capacity(text.len() / 4 + 2);
                tokenizer.encode_ordinary(&text, &mut tokens).map_err(|error| error.within(place))?;
                Ok((unit, tokens))
            };
            let encode =
                || batch.unwrap_or_default().into_par_iter().map(encode).collect::<Result<Vec<_>, DataError>>();
            let before = std::mem::take(&mut ready);
            let (encoded, written) = rayon::join(encode, || self.write_all(before));
            written?;
            ready = encoded?;
            if done {
                return Ok(());
            }
        }
    }

    fn write_all(&mut self, units: Vec<(Unit, Vec<u32>)>) -> Result<(), DataError> {
        for (unit, tokens) in units {
            self.write(&unit, tokens)?;
        }
        let (bytes_done, bytes, tokens) = (self.state.counts.text_bytes, self.bytes, self.tokens);
        let bytes_total = self.bytes_total.max(bytes_done);
        (self.report)(ShardEvent::Written { bytes_done, bytes_total, tokens, bytes });
        Ok(())
    }

    fn write(&mut self, unit: &Unit, mut tokens: Vec<u32>) -> Result<(), DataError> {
        let after = self.request.format.appends_end();
        match self.end {
            Some(end) if unit.first && !after => tokens.insert(0, end),
            Some(end) if unit.last && after => tokens.push(end),
            _ => {}
        }
        let here = Place { document: unit.document, offset: unit.offset, tokens: 0 };
        let mut written = 0;
        if (here.document, here.offset) == (self.state.place.document, self.state.place.offset) {
            written = (self.state.place.tokens as usize).min(tokens.len());
        }
        while written < tokens.len() {
            let first = self.state.settings.held_out == HeldOut::FirstShard && self.state.shards.is_empty();
            let stream = match unit.split {
                SplitName::Train if !first => &mut self.train,
                _ => &mut self.validation,
            };
            let (taken, whole) = stream.write(&tokens[written..])?;
            self.state.counts.used.note(&tokens[written..written + taken]);
            written += taken;
            self.tokens += taken as u64;
            self.unsafe_tokens += taken as u64;
            if let Some(shard) = whole {
                (self.report)(ShardEvent::Whole(&shard));
                self.state.shards.push(shard);
                self.state.place = Place { tokens: written as u64, ..here };
                self.save()?;
            }
        }
        self.bytes += unit.length;
        self.state.counts.text_bytes += unit.length;
        self.state.counts.documents += u64::from(unit.last);
        let (document, offset) =
            if unit.last { (unit.document + 1, 0) } else { (unit.document, unit.offset + unit.length) };
        self.state.place = Place { document, offset, tokens: 0 };
        if self.request.format.one_file() && self.unsafe_tokens >= self.request.shard_tokens {
            self.save()?;
        }
        Ok(())
    }

    /// Makes what is written durable, and notes it.
    fn save(&mut self) -> Result<(), DataError> {
        if self.request.format.one_file() {
            let open = [self.validation.sync()?, self.train.sync()?];
            self.state.open = open.into_iter().flatten().collect();
        }
        self.unsafe_tokens = 0;
        put(&self.request.folder.join(STATE), &self.state)
    }

    /// Completes the last shards and writes the card.
    pub(super) fn complete(&mut self, passes: &[Pass<'_>]) -> Result<Card, DataError> {
        let held_out = self.state.settings.held_out;
        let tokens = self.train.pending() + self.validation.pending();
        let whole = |split| self.state.shards.iter().any(|shard| shard.split == short(split));
        if self.state.counts.documents == 0 {
            return Err(DataError::setting("data.train", "no text at all"));
        }
        if held_out == HeldOut::FirstShard && self.train.pending() == 0 && !whole(SplitName::Train) {
            let tokens = tokens + self.state.shards.iter().map(|shard| shard.tokens).sum::<u64>();
            self.abandon();
            let message = format!(
                "the first shard is validation, and all {tokens} tokens are in it: give fewer, such as {}, or hold nothing out",
                (tokens / 10).max(1)
            );
            return Err(DataError::setting("shard_tokens", message));
        }
        if let (HeldOut::Fraction(fraction), 0, false) =
            (held_out, self.validation.pending(), whole(SplitName::Validation))
        {
            let documents = self.state.counts.documents;
            self.abandon();
            let message =
                format!("of {documents} documents a fraction of {fraction} is none; give a larger one, such as 0.1");
            return Err(DataError::setting("held_out", message));
        }
        for stream in [&mut self.validation, &mut self.train] {
            if let Some(shard) = stream.finish()? {
                (self.report)(ShardEvent::Whole(&shard));
                self.state.shards.push(shard);
            }
        }
        self.state.open.clear();
        let mut shards = self.state.shards.clone();
        shards.sort_by_key(|shard| (shard.split != short(SplitName::Validation), shard.file.clone()));
        let has_tokenizer = beside::complete(self.request, self.tokenizer)?;
        let counts = &self.state.counts;
        let end_of_text_is =
            self.end.map(|_| if self.request.format.appends_end() { "after" } else { "before" }.to_owned());
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
                end_of_text: self.end,
                end_of_text_is,
                file: has_tokenizer.then(|| TOKENIZER.to_owned()),
            },
            sources: passes.iter().map(|pass| card_source(pass.source)).collect(),
            shards,
        };
        put(&self.request.folder.join(CARD), &card)?;
        let _ = fs::remove_file(self.request.folder.join(STATE));
        Ok(card)
    }

    /// Takes back what was written: the request cannot be met.
    fn abandon(&mut self) {
        for shard in self.state.shards.drain(..) {
            let _ = fs::remove_file(self.request.folder.join(shard.file));
        }
        self.state.open.clear();
    }
}

/// About how much text a source has: what is in a compressed column is longer than the file.
fn text_bytes(source: &Located) -> u64 {
    let Documents::Parquet { text } = &source.documents else { return source.bytes() };
    let of_file = |file: &SourceFile| {
        let columns = text.fields().into_iter().map(|column| column_bytes(&file.path, column));
        columns.sum::<Option<u64>>().unwrap_or(file.size)
    };
    source.files.iter().map(of_file).sum()
}

fn card_source(source: &Located) -> CardSource {
    let files = source.files.iter().map(|file| CardFile {
        name: file.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        bytes: file.size,
        blake3: file.hash.clone(),
    });
    let split = source.origin.split();
    CardSource { split: short(split).to_owned(), files: files.collect() }
}

fn put(path: &Path, value: &impl serde::Serialize) -> Result<(), DataError> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|error| DataError::file(path, error.to_string()))?;
    bytes.push(b'\n');
    write(path, &bytes)
}

/// Writes a small file whole, or not at all; what a kill leaves has the name of an unfinished shard, and goes with those.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let unfinished = partial(folder, &path.file_name().unwrap_or_default().to_string_lossy());
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(failed(path))
}
