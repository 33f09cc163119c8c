//! Tokenizes a source into shards: a thread reads, the pool encodes one batch while the one before is written. What comes out
//! depends on source, tokenizer and settings alone, and a killed process is gone on with behind its last whole shard.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};

use rayon::prelude::*;

use super::card::{CARD, Card, CardFile, CardShard, CardSource, CardTokenizer, Settings};
use super::file::{failed, remove_partials};
use super::format::{ShardFormat, short};
use super::split::HeldOut;
use super::state::{Counts, STATE, Side, State, Used};
use super::stream::ShardStream;
use super::units::{self, Division, Place, Unit};
use crate::config::experiment::Data;
use crate::data::cache::Cache;
use crate::data::error::DataError;
use crate::data::progress::{Progress, SplitName};
use crate::data::source::{Documents, Located, Origin, locate, own_source};
use crate::data::stories;
use crate::data::stream::Width;
use crate::data::tokenizer::{self, TextTokenizer};

/// The tokenizer beside the shards.
pub(in crate::data) const TOKENIZER: &str = "tokenizer.json";

/// What to write, of what, and where.
#[derive(Debug, Clone, Copy)]
pub struct ShardRequest<'a> {
    /// Tokenizer and sources; the layout does not matter.
    pub data: &'a Data,
    /// Where trained tokenizers and the built-in corpus are kept.
    pub cache_dir: &'a Path,
    pub format: ShardFormat,
    /// Created if missing.
    pub folder: &'a Path,
    /// What file names begin with, where the format leaves it open.
    pub name: &'a str,
    /// Tokens of a shard; where a split is one file, how often progress is made safe.
    pub shard_tokens: u64,
    /// `None`: as the format's trainer has it, or the validation source if the data has one.
    pub held_out: Option<HeldOut>,
    /// Replace what is there, finished or not.
    pub force: bool,
}

/// What is told while it works, from several threads.
#[derive(Debug)]
pub enum ShardEvent<'a> {
    Preparing(Progress),
    /// An earlier process wrote this many shards, and tokens; this one goes on.
    Resumed {
        shards: u64,
        tokens: u64,
    },
    /// Of text of the source in all; of tokens written by this process.
    Written {
        bytes_done: u64,
        bytes_total: u64,
        tokens: u64,
        bytes: u64,
    },
    Whole(&'a CardShard),
}

/// What there is now.
#[derive(Debug, Clone)]
pub struct Sharded {
    pub card: Card,
    /// It was there already.
    pub up_to_date: bool,
    /// Text and tokens that this process wrote.
    pub bytes: u64,
    pub tokens: u64,
    /// Seconds between the first batch and the last.
    pub seconds: f64,
}

/// Hears what happens.
pub(super) type Report<'a> = dyn Fn(ShardEvent<'_>) + Sync + 'a;

/// Writes shards, or goes on with them, or finds them whole. Works in the current rayon pool.
///
/// # Errors
/// Whatever is wrong with sources and settings, other things in the folder unless `force`, and whatever keeps files from being
/// written.
pub fn write_shards(request: &ShardRequest<'_>, report: &Report<'_>) -> Result<Sharded, DataError> {
    let cache = Cache::open(request.cache_dir)?;
    let preparing = |progress| report(ShardEvent::Preparing(progress));
    let find = |source, origin| {
        let builtin = |origin| {
            let files = stories::materialize(&cache, &preparing)?;
            Ok(if origin == Origin::Train { files.train } else { files.validation })
        };
        let split = if origin == Origin::Train { SplitName::Train } else { SplitName::Validation };
        let hashing = |bytes_done, bytes_total| preparing(Progress::Hashing { split, bytes_done, bytes_total });
        let located = locate(source, origin, &cache, &builtin, &hashing)?;
        if located.documents == Documents::Tokens {
            return Err(DataError::setting(origin.key(), "token shards hold no text to tokenize"));
        }
        Ok(located)
    };
    let train = find(&request.data.train, Origin::Train)?;
    let own = request.data.validation.as_ref().and_then(own_source);
    let held_out = request.held_out.unwrap_or(match (&own, request.format.one_file()) {
        (Some(_), _) => HeldOut::Source,
        (None, true) if units::is_single(&train) => HeldOut::Fraction(0.1),
        (None, true) => HeldOut::Fraction(0.0005),
        (None, false) => HeldOut::FirstShard,
    });
    let validation = match (held_out, own) {
        (HeldOut::Source, Some(source)) => Some(find(&source, Origin::Validation)?),
        (HeldOut::Source, None) => {
            return Err(DataError::setting("data.validation", "there is no validation source to take"));
        }
        _ => None,
    };
    let tokenizer = tokenizer::build(request.data, &train, &cache, &preparing)?;
    check(request, held_out, &tokenizer)?;

    let settings = Settings {
        shards: request.format,
        name: request.name.to_owned(),
        shard_tokens: (!request.format.one_file()).then_some(request.shard_tokens),
        held_out,
        source: train.hash.clone(),
        validation: validation.as_ref().map(|source| source.hash.clone()),
        tokenizer: tokenizer.hash().to_owned(),
    };
    fs::create_dir_all(request.folder).map_err(failed(request.folder))?;
    let lock = File::open(request.folder).map_err(DataError::io(request.folder))?;
    if matches!(lock.try_lock(), Err(fs::TryLockError::WouldBlock)) {
        return Err(DataError::file(request.folder, "another process prepares into this folder"));
    }
    let (state, resumed) = match standing(request, &settings)? {
        Standing::Whole(card) => {
            return Ok(Sharded { card: *card, up_to_date: true, bytes: 0, tokens: 0, seconds: 0.0 });
        }
        Standing::Begun(state) => (*state, true),
        Standing::New => {
            let counts = Counts { used: Used::new(tokenizer.vocab_size()), ..Counts::default() };
            let (place, shards, open) = (Place::default(), Vec::new(), Vec::new());
            (State { format: 1, settings, pass: 0, place, counts, shards, open }, false)
        }
    };
    let passes = passes(&train, validation.as_ref(), held_out)?;
    let mut job = Job::new(request, &tokenizer, state, units::is_single(&train), report)?;
    if resumed {
        let tokens =
            job.state.shards.iter().map(|shard| shard.tokens).chain(job.state.open.iter().map(|o| o.tokens)).sum();
        report(ShardEvent::Resumed { shards: job.state.shards.len() as u64, tokens });
    }
    let result = job.run(&passes).and_then(|()| job.complete(&passes));
    if result.is_err() {
        // What the state does not speak of is worth nothing.
        let kept: Vec<&str> = job.state.open.iter().map(|open| open.file.as_str()).collect();
        remove_partials(request.folder, &kept);
        if job.state.is_empty() {
            let _ = fs::remove_file(request.folder.join(STATE));
        }
    }
    let card = result?;
    let seconds = job.started.map_or(0.0, |started| started.elapsed().as_secs_f64());
    Ok(Sharded { card, up_to_date: false, bytes: job.bytes, tokens: job.tokens, seconds })
}

/// A source and where its text goes.
struct Pass<'a> {
    source: &'a Located,
    division: Division,
}

fn passes<'a>(
    train: &'a Located,
    validation: Option<&'a Located>,
    held_out: HeldOut,
) -> Result<Vec<Pass<'a>>, DataError> {
    let mut passes = Vec::new();
    if let Some(source) = validation {
        passes.push(Pass { source, division: Division::All(SplitName::Validation) });
    }
    let division = match held_out {
        // int(n · 0.9) characters for training, as in nanoGPT's Shakespeare.
        HeldOut::Fraction(fraction) if units::is_single(train) => {
            Division::From((units::characters(train)? as f64 * (1.0 - fraction)) as u64)
        }
        HeldOut::Fraction(fraction) => Division::Drawn(fraction),
        _ => Division::All(SplitName::Train),
    };
    passes.push(Pass { source: train, division });
    Ok(passes)
}

fn check(request: &ShardRequest<'_>, held_out: HeldOut, tokenizer: &TextTokenizer) -> Result<(), DataError> {
    let (format, vocabulary) = (request.format, tokenizer.vocab_size());
    if format.width() == Width::U16 && vocabulary > 1 << 16 {
        let message = format!(
            "the tokenizer has {vocabulary} ids, and {} holds ids below 65536; `--to llmc-u32` writes llm.c's shards of 32 bits",
            format.name()
        );
        return Err(DataError::setting("--to", message));
    }
    if request.shard_tokens == 0 || request.shard_tokens > format.most_tokens() {
        let message = format!("a shard of {} has 1 to {} tokens", format.name(), format.most_tokens());
        return Err(DataError::setting("--shard-tokens", message));
    }
    match held_out {
        HeldOut::FirstShard if format.one_file() => {
            Err(DataError::setting("--validation", "nanoGPT's files are no shards; give a fraction, such as 0.1"))
        }
        HeldOut::Fraction(fraction) if !(fraction > 0.0 && fraction < 1.0) => {
            Err(DataError::setting("--validation", format!("a fraction lies between 0 and 1, and this is {fraction}")))
        }
        _ => Ok(()),
    }
}

/// What is in the folder.
enum Standing {
    New,
    Begun(Box<State>),
    Whole(Box<Card>),
}

fn standing(request: &ShardRequest<'_>, settings: &Settings) -> Result<Standing, DataError> {
    let folder = request.folder;
    let refuse = |message: String| Err(DataError::file(folder, message));
    let (card_path, state_path) = (folder.join(CARD), folder.join(STATE));
    if request.force {
        clear(folder, request)?;
        return Ok(Standing::New);
    }
    if card_path.exists() {
        let Some(card) = Card::read(folder) else {
            return refuse(format!("holds a {CARD} of something else; --force replaces it"));
        };
        if card.settings != *settings {
            let differences = settings.differences(&card.settings);
            return refuse(format!("holds a finished set of shards: {differences}; --force replaces it"));
        }
        let bytes = |shard: &CardShard| {
            (request.format.header_bytes() as u64) + shard.tokens * request.format.width().bytes() as u64
        };
        let wrong =
            |shard: &&CardShard| fs::metadata(folder.join(&shard.file)).ok().map(|m| m.len()) != Some(bytes(shard));
        if let Some(shard) = card.shards.iter().find(wrong) {
            return refuse(format!("{} is not what {CARD} says any more; --force writes all anew", shard.file));
        }
        let _ = fs::remove_file(state_path);
        return Ok(Standing::Whole(Box::new(card)));
    }
    match State::read(folder)? {
        Some(state) if state.settings == *settings => {
            for shard in &state.shards {
                if !folder.join(&shard.file).is_file() {
                    return refuse(format!("{} is gone, which was written already; --force starts over", shard.file));
                }
            }
            let kept: Vec<&str> = state.open.iter().map(|open| open.file.as_str()).collect();
            remove_partials(folder, &kept);
            return Ok(Standing::Begun(Box::new(state)));
        }
        Some(state) if !state.is_empty() => {
            let differences = settings.differences(&state.settings);
            return refuse(format!("holds an unfinished set of shards: {differences}; --force starts over"));
        }
        _ => {}
    }
    if let Some(file) = files_of(folder, request).into_iter().next() {
        return refuse(format!("holds {file} already; --force replaces the shards of that name"));
    }
    remove_partials(folder, &[]);
    Ok(Standing::New)
}

/// Files that a set of this format and name may have.
fn files_of(folder: &Path, request: &ShardRequest<'_>) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| request.format.is_of(request.name, name)).collect();
    names.sort();
    names
}

/// Removes an earlier set: the files of this format and name, and those that its card or state lists.
fn clear(folder: &Path, request: &ShardRequest<'_>) -> Result<(), DataError> {
    let mut names = files_of(folder, request);
    let listed = Card::read(folder).map(|card| card.shards).into_iter();
    let listed = listed.chain(State::read(folder).ok().flatten().map(|state| state.shards)).flatten();
    // A card may have been written by anyone: only names of files in this folder.
    names.extend(listed.map(|shard| shard.file).filter(|file| Path::new(file).file_name() == Some(file.as_ref())));
    names.extend([CARD, STATE].map(str::to_owned));
    for name in names {
        let path = folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(DataError::io(&path)(error)),
            _ => {}
        }
    }
    remove_partials(folder, &[]);
    Ok(())
}

struct Job<'a> {
    request: &'a ShardRequest<'a>,
    tokenizer: &'a TextTokenizer,
    report: &'a Report<'a>,
    end: Option<u32>,
    state: State,
    /// Training and validation.
    train: ShardStream,
    validation: ShardStream,
    /// Tokens since progress was made safe.
    unsafe_tokens: u64,
    started: Option<std::time::Instant>,
    bytes: u64,
    tokens: u64,
    bytes_total: u64,
}

impl<'a> Job<'a> {
    fn new(
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

    fn run(&mut self, passes: &[Pass<'_>]) -> Result<(), DataError> {
        self.save()?;
        self.bytes_total = passes.iter().map(|pass| pass.source.bytes()).sum();
        self.started = Some(std::time::Instant::now());
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
    fn complete(&mut self, passes: &[Pass<'_>]) -> Result<Card, DataError> {
        let held_out = self.state.settings.held_out;
        let tokens = self.train.pending() + self.validation.pending();
        let whole = |split| self.state.shards.iter().any(|shard| shard.split == short(split));
        if self.state.counts.documents == 0 {
            return Err(DataError::setting("data.train", "the source is empty: there is no text in it"));
        }
        if held_out == HeldOut::FirstShard && self.train.pending() == 0 && !whole(SplitName::Train) {
            let tokens = tokens + self.state.shards.iter().map(|shard| shard.tokens).sum::<u64>();
            self.abandon();
            let message = format!(
                "the first shard is validation, and all {tokens} tokens are in it: give fewer, such as {}, or `--validation none`",
                (tokens / 10).max(1)
            );
            return Err(DataError::setting("--shard-tokens", message));
        }
        if let (HeldOut::Fraction(fraction), 0, false) =
            (held_out, self.validation.pending(), whole(SplitName::Validation))
        {
            let documents = self.state.counts.documents;
            self.abandon();
            let message =
                format!("of {documents} documents a fraction of {fraction} is none; give a larger one, such as 0.1");
            return Err(DataError::setting("--validation", message));
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
        let file = self.tokenizer.to_huggingface().ok();
        if let Some(json) = &file {
            write(&self.request.folder.join(TOKENIZER), json.as_bytes())?;
        }
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
                file: file.map(|_| TOKENIZER.to_owned()),
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

fn card_source(source: &Located) -> CardSource {
    let files = source.files.iter().map(|file| CardFile {
        name: file.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        bytes: file.size,
        blake3: file.hash.clone(),
    });
    let split = if source.origin == Origin::Train { SplitName::Train } else { SplitName::Validation };
    CardSource { split: short(split).to_owned(), files: files.collect() }
}

fn put(path: &Path, value: &impl serde::Serialize) -> Result<(), DataError> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|error| DataError::file(path, error.to_string()))?;
    bytes.push(b'\n');
    write(path, &bytes)
}

/// Writes a small file whole, or not at all.
fn write(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".tmp-").tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        // A temporary file is its owner's alone; what is beside it is not.
        file.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
        file.persist(path)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(failed(path))
}
