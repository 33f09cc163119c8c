//! What is in the folder before anything is written: nothing, an unfinished set that is gone on with, a finished one, or something
//! else, which stays.

use std::fs;
use std::path::Path;

use super::card::{CARD, Card, CardShard, Settings};
use super::file::remove_partials;
use super::format::ShardFormat;
use super::job::ShardRequest;
use super::meta::META;
use super::state::{STATE, State};
use crate::error::DataError;

/// What is in the folder.
pub(super) enum Standing {
    New,
    Begun(Box<State>),
    Whole(Box<Card>),
}

/// Looks at the folder of `request`, whose shards are a function of `settings`; with `force` clears it.
///
/// # Errors
/// If something else is there, or what is there is damaged.
pub(super) fn standing(request: &ShardRequest<'_>, settings: &Settings) -> Result<Standing, DataError> {
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
    if request.format == ShardFormat::NanoGpt {
        names.push(META.to_owned());
    }
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
