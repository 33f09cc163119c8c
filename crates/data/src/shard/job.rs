//! From a request to shards: finds the sources, makes the tokenizer, and sees that the two fit the format. What comes out depends on
//! them and the settings alone, and a killed process is gone on with behind its last whole shard.

use std::fs::{self, File};
use std::path::Path;

use super::beside;
use super::card::{Card, CardShard, Settings};
use super::file::{failed, remove_partials};
use super::format::ShardFormat;
use super::split::HeldOut;
use super::standing::{Standing, standing};
use super::state::{Counts, STATE, State, Used};
use super::units::{self, Division, Place};
use super::work::{Job, Pass};
use crate::cache::Cache;
use crate::error::DataError;
use crate::progress::{Progress, SplitName};
use crate::source::{Documents, Located, Origin, locate, own_source};
use crate::stories;
use crate::stream::Width;
use crate::tokenizer;
use crate::tokenizer::TextTokenizer;
use runner_spec::experiment::Data;

/// The tokenizer beside the shards.
pub(super) const TOKENIZER: &str = "tokenizer.json";

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
/// Whatever is wrong with sources and settings (named by their keys in the experiment, or as fields of `request`), other things in the folder unless `force`, and whatever keeps files from being
/// written.
pub fn write_shards(request: &ShardRequest<'_>, report: &Report<'_>) -> Result<Sharded, DataError> {
    let cache = Cache::open(request.cache_dir)?;
    let preparing = |progress| report(ShardEvent::Preparing(progress));
    let find = |source, origin| {
        let builtin = |origin| {
            let files = stories::write_corpus(&cache, &preparing)?;
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
    beside::clear_the_way(request, &tokenizer)?;
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
            "the tokenizer has {vocabulary} ids, and {} holds ids below 65536; llmc-u32, llm.c's shards of 32 bits, holds them",
            format.name()
        );
        return Err(DataError::setting("format", message));
    }
    if request.shard_tokens == 0 || request.shard_tokens > format.most_tokens() {
        let message = format!("a shard of {} has 1 to {} tokens", format.name(), format.most_tokens());
        return Err(DataError::setting("shard_tokens", message));
    }
    match held_out {
        HeldOut::FirstShard if format.one_file() => {
            Err(DataError::setting("held_out", "nanoGPT's files are no shards; give a fraction, such as 0.1"))
        }
        HeldOut::Fraction(fraction) if !(fraction > 0.0 && fraction < 1.0) => {
            Err(DataError::setting("held_out", format!("a fraction lies between 0 and 1, and this is {fraction}")))
        }
        _ => Ok(()),
    }
}
