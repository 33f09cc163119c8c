//! Prepares token shards: finds the sources, makes the tokenizer, checks that both fit the format, and writes. The shards depend only
//! on sources, tokenizer and settings.

use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

use super::card::{CARD, HeldOut, Settings};
use super::folder::{clean, publish, read_finished, stage_prefix};
use super::request::{Report, ShardEvent, ShardRequest, WrittenShards};
use super::split_writer::SplitWriter;
use super::writer::{Pass, ShardWriter, SplitAssignment, count_characters};
use crate::cache::DataCache;
use crate::error::{DataError, Result};
use crate::hub::{HubSplit, check_free_space, open_split};
use crate::progress::Progress;
use crate::shared_files::{check_disjoint, check_no_repeated_file, describe_repeated_files};
use crate::source::{LocatedSource, locate, locate_on_hub};
use crate::split_name::SplitName;
use crate::tokenizer::{TextTokenizer, make_tokenizer};
use runner_spec::experiment::{Source, TokenType};

/// Writes shards, or finds them complete. Works in the current rayon pool.
///
/// # Errors
/// If sources or settings are wrong (named by their keys in the experiment, or by the fields of `request`), if the folder holds other shards
/// and not `force`, or if files cannot be written.
pub fn write_shards(request: &ShardRequest<'_>, report: &Report<'_>) -> Result<WrittenShards> {
    let cache = DataCache::open(request.cache_dir)?;
    let preparing = |progress| report(ShardEvent::Preparing(progress));
    let open = |source: &Source, split: SplitName| match source.hub().zip(request.hub) {
        Some((source, hub)) => {
            let key = format!("{}.hub", split.key());
            open_split(source, &key, hub, &|part| preparing(Progress::Downloading(part))).map(Some)
        }
        None => Ok(None),
    };
    let find = |source: &Source, opened: Option<HubSplit>, split: SplitName| {
        let located = match opened {
            Some(opened) => locate_on_hub(opened, split)?,
            None => locate(source, split, &cache, &preparing)?,
        };
        if located.documents.is_tokens() {
            return Err(DataError::setting(split.key(), "token shards hold no text to tokenize"));
        }
        Ok(located)
    };
    let separate = request.data.separate_validation();
    let separate = separate.filter(|_| request.held_out.is_none_or(|held_out| held_out == HeldOut::Source));
    let train_on_hub = open(&request.data.train, SplitName::Train)?;
    let validation_on_hub = separate.map(|source| open(source, SplitName::Validation)).transpose()?.flatten();
    check_space(request, [validation_on_hub.as_ref(), train_on_hub.as_ref()])?;
    let train = find(&request.data.train, train_on_hub, SplitName::Train)?;
    let held_out = request.held_out.unwrap_or(match (&separate, request.format.one_file()) {
        (Some(_), _) => HeldOut::Source,
        (None, true) if train.is_single_text() => HeldOut::Fraction(0.1),
        (None, true) => HeldOut::Fraction(0.0005),
        (None, false) => HeldOut::FirstShard,
    });
    let validation = match (held_out, separate) {
        (HeldOut::Source, Some(source)) => Some(find(source, validation_on_hub, SplitName::Validation)?),
        (HeldOut::Source, None) => {
            return Err(DataError::setting("data.validation", "there is no validation source to hold out"));
        }
        _ => None,
    };
    if matches!(held_out, HeldOut::Fraction(_) | HeldOut::FirstShard) {
        check_no_repeated_file(&train)?;
    }
    let mut warnings: Vec<String> = describe_repeated_files(&train).into_iter().collect();
    if let Some(validation) = &validation {
        warnings.extend(
            describe_repeated_files(validation).map(|warning| format!("{}: {warning}", validation.split.key())),
        );
        warnings.extend(check_disjoint(&train, validation, ", which is trained on; validate on different text")?);
    }
    for warning in warnings {
        report(ShardEvent::Warning(warning));
    }
    let tokenizer = make_tokenizer(request.data, &train, None, &cache, &preparing)?;
    check(request, held_out, &tokenizer)?;

    let settings = Settings {
        shards: request.format,
        name: request.name.to_owned(),
        shard_tokens: (!request.format.one_file()).then_some(request.shard_tokens),
        held_out,
        source: train.hash.clone(),
        validation: validation.as_ref().map(|source| source.hash.clone()),
        tokenizer: tokenizer.hash().to_owned(),
        max_tokens: request.max_tokens,
        max_rows: request.max_rows,
    };
    let folder = request.folder;
    runner_files::create_dir_all(folder).map_err(DataError::io(folder))?;
    let lock = File::open(folder).map_err(DataError::io(folder))?;
    // Without locks in the file system, another process goes unnoticed.
    if matches!(lock.try_lock(), Err(fs::TryLockError::WouldBlock)) {
        return Err(DataError::file(folder, "another process is preparing data in this folder"));
    }
    clean(folder)?;
    if let Some(card) = read_finished(request, &settings, &tokenizer, report)? {
        return Ok(WrittenShards { card, up_to_date: true, seconds: 0.0 });
    }
    let started = Instant::now();
    let passes = passes(&train, validation.as_ref(), held_out)?;
    let stage = runner_files::temporary_dir(folder, &stage_prefix()).map_err(DataError::io(folder))?;
    let card = new_writer(request, &settings, &passes, &tokenizer, stage.path(), report).run(&passes)?;
    publish(&stage.keep(), &card, folder)?;
    Ok(WrittenShards { card, up_to_date: false, seconds: started.elapsed().as_secs_f64() })
}

fn new_writer<'a>(
    request: &'a ShardRequest<'a>,
    settings: &'a Settings,
    passes: &[Pass<'_>],
    tokenizer: &'a TextTokenizer,
    stage: &'a Path,
    report: &'a Report<'a>,
) -> ShardWriter<'a> {
    let split = |split, first| SplitWriter::new(request, stage, split, first, report);
    // In nanoGPT's files nothing separates a single text; the other formats mark the start of every document.
    let is_single = passes.last().is_some_and(|pass| pass.source.is_single_text());
    ShardWriter {
        request,
        settings,
        tokenizer,
        report,
        stage,
        end_of_text: tokenizer.end_of_text().filter(|_| !(is_single && request.format.appends_end())),
        train: split(SplitName::Train, u64::from(settings.held_out != HeldOut::Nothing)),
        validation: split(SplitName::Validation, 0),
        bytes_total: passes.iter().map(|pass| pass.source.bytes()).sum(),
        documents: 0,
        text_bytes: 0,
        used: vec![false; tokenizer.vocab_size()],
        unended: None,
        is_at_limit: false,
    }
}

/// Checks that the disk has room for all missing files of `sources`. What a set with a limit needs is unknown.
fn check_space(request: &ShardRequest<'_>, sources: [Option<&HubSplit>; 2]) -> Result<()> {
    let is_finished = !request.force && request.folder.join(CARD).exists();
    let Some(hub) = request.hub.filter(|_| !is_finished && request.max_tokens.is_none() && request.max_rows.is_none())
    else {
        return Ok(());
    };
    let needed = sources.into_iter().flatten().map(HubSplit::missing_bytes).fold(0, u64::saturating_add);
    Ok(check_free_space(&hub.cache, needed)?)
}

fn passes<'a>(
    train: &'a LocatedSource,
    validation: Option<&'a LocatedSource>,
    held_out: HeldOut,
) -> Result<Vec<Pass<'a>>> {
    let assignment = match held_out {
        // int(n · 0.9) characters for training, as in nanoGPT's Shakespeare.
        HeldOut::Fraction(fraction) if train.is_single_text() => {
            SplitAssignment::CharactersFrom((count_characters(train)? as f64 * (1.0 - fraction)) as u64)
        }
        HeldOut::Fraction(fraction) => SplitAssignment::Drawn(fraction),
        _ => SplitAssignment::All(SplitName::Train),
    };
    let all = SplitAssignment::All(SplitName::Validation);
    let validation = validation.map(|source| Pass { source, assignment: all });
    Ok(validation.into_iter().chain([Pass { source: train, assignment }]).collect())
}

fn check(request: &ShardRequest<'_>, held_out: HeldOut, tokenizer: &TextTokenizer) -> Result<()> {
    let (format, vocabulary) = (request.format, tokenizer.vocab_size());
    if format.token_type() == TokenType::Uint16 && vocabulary > 1 << 16 {
        let message = format!(
            "the tokenizer has {vocabulary} ids, but {} holds only ids below 65536; use llmc-u32, llm.c's 32-bit shards",
            format.name()
        );
        return Err(DataError::setting("format", message));
    }
    if request.shard_tokens == 0 || request.shard_tokens > format.max_shard_tokens() {
        let message = format!("a shard of {} must have 1 to {} tokens", format.name(), format.max_shard_tokens());
        return Err(DataError::setting("shard_tokens", message));
    }
    if let Some((key, _)) = [("max_tokens", request.max_tokens), ("max_rows", request.max_rows)]
        .into_iter()
        .find(|(_, limit)| *limit == Some(0))
    {
        return Err(DataError::setting(key, "a limit of 0 leaves nothing to write"));
    }
    match held_out {
        HeldOut::FirstShard if format.one_file() => {
            Err(DataError::setting("held_out", "nanoGPT's format has no shards; give a fraction, such as 0.1"))
        }
        HeldOut::Fraction(fraction) if !(fraction > 0.0 && fraction < 1.0) => Err(DataError::setting(
            "held_out",
            format!("a fraction must be greater than 0 and less than 1, got {fraction}"),
        )),
        _ => Ok(()),
    }
}
