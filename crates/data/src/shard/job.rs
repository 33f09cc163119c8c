//! Prepares token shards: finds the sources, makes the tokenizer, checks that both fit the format, and writes. The shards depend only
//! on sources, tokenizer and settings. After a kill, the same command continues after the last complete shard.

use std::fs::{self, File};

use super::batches::{Pass, SplitAssignment, TextPosition, count_characters};
use super::card::{CARD, HeldOut, Settings};
use super::folder::{
    FolderContent, check_companion_files, files_of_set, read_folder, remove_if_there, remove_set, remove_unfinished,
    verify_companion_files, write_error,
};
use super::request::{Report, ShardEvent, ShardRequest, WrittenShards};
use super::state::{Counts, ResumeState, STATE, UsedIds};
use super::writer::ShardWriter;
use crate::cache::DataCache;
use crate::error::{DataError, Result};
use crate::hub::{HubSplit, check_free_space, open_split};
use crate::progress::Progress;
use crate::shared_files::{check_disjoint, check_no_repeated_file, describe_repeated_files};
use crate::source::{LocatedSource, locate, locate_on_hub};
use crate::split_name::SplitName;
use crate::tokenizer::{TextTokenizer, make_tokenizer};
use runner_spec::experiment::{Source, TokenType};

/// Writes shards, continues an earlier preparation, or finds the shards complete. Works in the current rayon pool.
///
/// # Errors
/// If sources or settings are wrong (named by their keys in the experiment, or by the fields of `request`), if the folder holds other shards
/// and not `force`, or if files cannot be written.
#[expect(clippy::too_many_lines, reason = "a preparation from its request to its card")]
pub fn write_shards(request: &ShardRequest<'_>, report: &Report<'_>) -> Result<WrittenShards> {
    let cache = DataCache::open(request.cache_dir)?;
    let preparing = |progress| report(ShardEvent::Preparing(progress));
    let open = |source: &Source, split: SplitName| match source.hub().zip(request.hub) {
        Some((source, hub)) => {
            let key = format!("{}.hub", split.key());
            open_split(source, &key, hub.settings, hub.memos, &|part| preparing(Progress::Downloading(part))).map(Some)
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
    let validation_pass = separate.map(|_| validation_on_hub.as_ref());
    check_space(request, &validation_pass.into_iter().chain([train_on_hub.as_ref()]).collect::<Vec<_>>())?;
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
    runner_files::create_dir_all(request.folder).map_err(write_error(request.folder))?;
    let lock = File::open(request.folder).map_err(DataError::io(request.folder))?;
    // Without locks in the file system, another process goes unnoticed.
    if matches!(lock.try_lock(), Err(fs::TryLockError::WouldBlock)) {
        return Err(DataError::file(request.folder, "another process is preparing data in this folder"));
    }
    let content = read_folder(request, &settings, report)?;
    if let FolderContent::Finished(_) = &content {
        verify_companion_files(request, &tokenizer)?;
    } else {
        check_companion_files(request, &tokenizer)?;
    }
    let state = match content {
        FolderContent::Finished(card) => {
            // The state of a process that was killed after it wrote the card.
            remove_if_there(&request.folder.join(STATE))?;
            return Ok(WrittenShards { card: *card, up_to_date: true, bytes: 0, tokens: 0, seconds: 0.0 });
        }
        FolderContent::Unfinished(state) => {
            let whole = state.shards.iter().map(|shard| shard.tokens);
            let tokens = whole.chain(state.open.iter().map(|open| open.tokens)).sum();
            report(ShardEvent::Resumed { shards: state.shards.len() as u64, tokens });
            *state
        }
        other => {
            if let FolderContent::Replaceable(names) = other {
                remove_set(request.folder, &names)?;
            }
            let counts = Counts { used: UsedIds::new(tokenizer.vocab_size()), ..Counts::default() };
            let (position, shards, open) = (TextPosition::default(), Vec::new(), Vec::new());
            ResumeState { format: 1, settings, pass: 0, position, counts, shards, open }
        }
    };
    let passes = passes(&train, validation.as_ref(), held_out)?;
    let mut writer = ShardWriter::new(request, &passes, &tokenizer, state, report)?;
    let result = writer.run();
    if result.is_err() {
        // Files that the state does not list are discarded.
        remove_unfinished(request.folder, &writer.state.open);
        // A complete shard that could not be synced is not in the state. With the state, the same command replaces it.
        if writer.state.is_empty() && files_of_set(request).is_empty() {
            // The first error counts; a state of nothing does no harm.
            let _ = remove_if_there(&request.folder.join(STATE));
        }
    }
    let card = result?;
    let (bytes, tokens, seconds) = (writer.bytes, writer.tokens, writer.started.elapsed().as_secs_f64());
    Ok(WrittenShards { card, up_to_date: false, bytes, tokens, seconds })
}

/// Checks that the disk has room for all missing files of `sources`, the last of which is that of training. A finished set needs none, and
/// what a set with a limit needs is unknown.
fn check_space(request: &ShardRequest<'_>, sources: &[Option<&HubSplit>]) -> Result<()> {
    let is_finished = !request.force && request.folder.join(CARD).exists();
    let Some(hub) = request.hub.filter(|_| !is_finished && request.max_tokens.is_none() && request.max_rows.is_none())
    else {
        return Ok(());
    };
    let state = if request.force { None } else { ResumeState::read(request.folder)? };
    let (pass, file) =
        state.filter(|state| !state.is_empty()).map_or((0, 0), |state| (state.pass, state.position.file));
    let missing = |(index, split): (usize, Option<&HubSplit>)| {
        split.map_or(0, |split| split.downloads.missing_bytes(if index == pass { file } else { 0 }))
    };
    let needed = sources.iter().copied().enumerate().skip(pass).map(missing).fold(0, u64::saturating_add);
    Ok(check_free_space(&hub.settings.cache, needed)?)
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
