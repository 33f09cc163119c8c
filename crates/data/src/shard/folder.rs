//! The folder of the shards: what an earlier preparation left in it, and the files beside the shards.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::card::{CARD, Card, CardShard, Settings};
use super::format::ShardFormat;
use super::nanogpt_meta::{META, meta};
use super::request::ShardRequest;
use super::state::{OpenFile, ResumeState, STATE};
use crate::error::{DataError, Result};
use crate::tokenizer::TextTokenizer;

/// The tokenizer beside the shards.
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// The shards of an earlier preparation.
pub(super) enum FolderContent {
    Empty,
    Unfinished(Box<ResumeState>),
    Finished(Box<Card>),
}

/// Reads what is in the folder of `request`, whose shards are a function of `settings`. With `force`, clears it first.
///
/// # Errors
/// If the folder holds shards of other settings or damaged ones.
pub(super) fn read_folder(request: &ShardRequest<'_>, settings: &Settings) -> Result<FolderContent> {
    let folder = request.folder;
    let refuse = |message: String| Err(DataError::file(folder, message));
    if request.force {
        clear(request)?;
        return Ok(FolderContent::Empty);
    }
    if folder.join(CARD).exists() {
        let Some(card) = Card::read(folder) else {
            return refuse(format!("holds a {CARD} of something else; --force replaces it"));
        };
        if card.settings != *settings {
            let differences = settings.differences(&card.settings);
            return refuse(format!("holds a finished set of shards: {differences}; --force replaces it"));
        }
        let is_changed = |shard: &&CardShard| {
            let bytes = request.format.header_bytes() as u64 + shard.tokens * request.format.width().bytes() as u64;
            !fs::metadata(folder.join(&shard.file)).is_ok_and(|found| found.len() == bytes)
        };
        if let Some(shard) = card.shards.iter().find(is_changed) {
            return refuse(format!("{} is not what {CARD} says any more; --force writes all anew", shard.file));
        }
        return Ok(FolderContent::Finished(Box::new(card)));
    }
    match ResumeState::read(folder)? {
        Some(state) if state.settings == *settings => {
            if let Some(shard) = state.shards.iter().find(|shard| !folder.join(&shard.file).is_file()) {
                return refuse(format!("{} is gone, which was written already; --force starts over", shard.file));
            }
            remove_unfinished(folder, &state.open);
            return Ok(FolderContent::Unfinished(Box::new(state)));
        }
        Some(state) if !state.is_empty() => {
            let differences = settings.differences(&state.settings);
            return refuse(format!("holds an unfinished set of shards: {differences}; --force starts over"));
        }
        _ => {}
    }
    if let Some(file) = files_of_set(request).first() {
        return refuse(format!("holds {file} already; --force replaces the shards of that name"));
    }
    remove_unfinished(folder, &[]);
    Ok(FolderContent::Empty)
}

/// Files that a set of this format and name may have.
pub(super) fn files_of_set(request: &ShardRequest<'_>) -> Vec<String> {
    let mut names = file_names(request.folder);
    names.retain(|name| request.format.is_in_set(request.name, name));
    names.sort();
    names
}

fn file_names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Removes an earlier set: the files of this format and name, and those that its card or state lists.
fn clear(request: &ShardRequest<'_>) -> Result<()> {
    let folder = request.folder;
    let mut names = files_of_set(request);
    let in_card = Card::read(folder).map(|card| card.shards).into_iter();
    let in_state = ResumeState::read(folder).ok().flatten().map(|state| state.shards);
    let listed = in_card.chain(in_state).flatten().map(|shard| shard.file);
    // Anyone may have written the card: only names of files in this folder count.
    names.extend(listed.filter(|file| Path::new(file).file_name() == Some(file.as_ref())));
    names.extend([CARD, STATE].map(str::to_owned));
    if request.format == ShardFormat::NanoGpt {
        names.push(META.to_owned());
    }
    for name in names {
        remove_if_there(&folder.join(name))?;
    }
    remove_unfinished(folder, &[]);
    Ok(())
}

/// Removes the file `path`, if there is one.
pub(super) fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(DataError::io(path)(error)),
        _ => Ok(()),
    }
}

/// The path of the file `name` until it is complete.
pub(super) fn unfinished_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!(".{name}.partial"))
}

/// Removes unfinished files of an earlier preparation that are not in `kept`.
pub(super) fn remove_unfinished(folder: &Path, kept: &[OpenFile]) {
    for name in file_names(folder) {
        let target = name.strip_prefix('.').and_then(|name| name.strip_suffix(".partial"));
        if target.is_some_and(|target| is_ours(target) && !kept.iter().any(|open| open.file == target)) {
            // A file that stays takes space, and is in nobody's way.
            let _ = fs::remove_file(folder.join(name));
        }
    }
}

/// True if a preparation, of any format and name, writes a file called `name`.
fn is_ours(name: &str) -> bool {
    [CARD, STATE, TOKENIZER, META].contains(&name)
        || ShardFormat::ALL.into_iter().any(|format| format.set_name(name).is_some())
}

/// The files beside the shards, with their content.
fn companion_files(request: &ShardRequest<'_>, tokenizer: &TextTokenizer) -> Vec<(&'static str, Vec<u8>)> {
    let json = tokenizer.to_tokenizer_json().ok().map(|json| (TOKENIZER, json.into_bytes()));
    let characters = tokenizer.characters().filter(|_| request.format == ShardFormat::NanoGpt);
    json.into_iter().chain(characters.map(|characters| (META, meta(characters)))).collect()
}

/// True if the file `path` has `content`, or is the file that `tokenizer` was read from.
fn is_same(path: &Path, content: &[u8], tokenizer: &TextTokenizer) -> bool {
    fs::read(path).is_ok_and(|found| found == content || blake3::hash(&found).to_hex().as_str() == tokenizer.hash())
}

/// Checks the files beside the shards before anything is written. With `force`, replaces them at once, so that the command continues
/// without `force` after a kill.
///
/// # Errors
/// If a file has other content, unless `force`.
pub(super) fn check_companion_files(request: &ShardRequest<'_>, tokenizer: &TextTokenizer) -> Result<()> {
    for (name, content) in companion_files(request, tokenizer) {
        let path = request.folder.join(name);
        if path.symlink_metadata().is_err() || is_same(&path, &content, tokenizer) {
            continue;
        }
        if !request.force {
            return Err(DataError::file(request.folder, format!("holds another {name} already; --force replaces it")));
        }
        write_file(&path, &content)?;
    }
    Ok(())
}

/// Writes the files beside the shards. Returns whether a tokenizer is among them.
///
/// # Errors
/// If one cannot be written.
pub(super) fn write_companion_files(request: &ShardRequest<'_>, tokenizer: &TextTokenizer) -> Result<bool> {
    let files = companion_files(request, tokenizer);
    for (name, content) in &files {
        let path = request.folder.join(name);
        if !is_same(&path, content, tokenizer) {
            write_file(&path, content)?;
        }
    }
    Ok(files.iter().any(|(name, _)| *name == TOKENIZER))
}

/// Writes `value` to the file `path` in JSON.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|error| DataError::file(path, error.to_string()))?;
    bytes.push(b'\n');
    write_file(path, &bytes)
}

/// Writes a small file atomically. Until then it has the name of an unfinished shard, so that what a kill leaves is removed with those:
/// the folder is the user's, where temporary files of other names may not be removed.
fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let unfinished = unfinished_path(folder, &path.file_name().unwrap_or_default().to_string_lossy());
    let write = || -> io::Result<()> {
        let mut file = File::create(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        runner_files::sync_dir(folder)
    };
    write().map_err(write_error(path))
}

/// An error of writing `path`. For a full disk it says how to continue.
pub(super) fn write_error(path: &Path) -> impl FnOnce(io::Error) -> DataError + '_ {
    move |source| {
        let cause = match source.kind() {
            io::ErrorKind::StorageFull => "the disk is full",
            io::ErrorKind::QuotaExceeded => "the disk quota is used up",
            _ => return DataError::Io { path: path.to_owned(), source },
        };
        let text = format!("{cause}: make room, and the same command continues where it can");
        DataError::Io { path: path.to_owned(), source: io::Error::other(text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unfinished_files_of_a_preparation_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let left = ["x_train_000001.bin", "any name_val_000000.npy", "train.bin", ".prepare.json", "tokenizer.json"];
        let theirs = [".movie.mkv.partial", ".x_train_1.bin.partial", "train.bin.partial", ".partial", "..partial"];
        for name in left.map(|name| format!(".{name}.partial")).into_iter().chain(theirs.map(str::to_owned)) {
            fs::write(dir.path().join(name), "").unwrap();
        }
        remove_unfinished(dir.path(), &[OpenFile { split: "train".into(), file: "train.bin".into(), tokens: 0 }]);
        let mut found = file_names(dir.path());
        found.sort();
        let mut expected: Vec<_> = theirs.into_iter().chain([".train.bin.partial"]).collect();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}
