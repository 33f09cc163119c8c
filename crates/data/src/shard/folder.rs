//! The folder of the shards: what an earlier preparation left in it, and the files beside the shards.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::card::{CARD, Card, Settings};
use super::format::ShardFormat;
use super::nanogpt_meta::{META, meta};
use super::request::{Report, ShardRequest};
use super::state::{OpenFile, ResumeState, STATE};
use super::verify::find_damage;
use crate::error::{DataError, Result};
use crate::tokenizer::TextTokenizer;
use runner_files::{if_present, read_regular};

/// The tokenizer beside the shards.
pub(crate) const TOKENIZER: &str = "tokenizer.json";

/// The shards of an earlier preparation.
pub(super) enum FolderContent {
    Empty,
    Unfinished(Box<ResumeState>),
    Finished(Box<Card>),
    /// Files of an earlier preparation to remove, by their names.
    Replaceable(Vec<String>),
}

/// Reads what is in the folder of `request`, whose shards are a function of `settings`.
///
/// # Errors
/// If the folder holds shards of other settings, damaged ones, or files that no preparation wrote. With `force`, only the last.
pub(super) fn read_folder(
    request: &ShardRequest<'_>,
    settings: &Settings,
    report: &Report<'_>,
) -> Result<FolderContent> {
    let folder = request.folder;
    let refuse = |message: String| Err(DataError::file(folder, message));
    let card = Card::read(folder);
    if card.is_none() && folder.join(CARD).symlink_metadata().is_ok() {
        return refuse(format!("contains a {CARD} of something else; move it away, or name a different folder"));
    }
    if request.force {
        let own = own_files(request, card.as_ref());
        refuse_foreign_files(request, &own)?;
        return Ok(if own.is_empty() { FolderContent::Empty } else { FolderContent::Replaceable(own) });
    }
    if let Some(card) = card {
        if card.settings != *settings {
            let differences = settings.differences(&card.settings);
            return refuse(format!("contains a finished set of shards: {differences}; use --force to replace it"));
        }
        if let Some(damage) = find_damage(folder, request.format, &card.shards, report)? {
            return refuse(format!("{damage}; use --force to write all shards again"));
        }
        return Ok(FolderContent::Finished(Box::new(card)));
    }
    match ResumeState::read(folder)? {
        Some(state) if state.settings == *settings => {
            if let Some(damage) = find_damage(folder, request.format, &state.shards, report)? {
                return refuse(format!("{damage}; use --force to start over"));
            }
            remove_unfinished(folder, &state.open);
            return Ok(FolderContent::Unfinished(Box::new(state)));
        }
        Some(state) if !state.is_empty() => {
            let differences = settings.differences(&state.settings);
            return refuse(format!("contains an unfinished set of shards: {differences}; use --force to start over"));
        }
        Some(_) => remove_unfinished(folder, &[]),
        None => {}
    }
    refuse_foreign_files(request, &[])?;
    Ok(FolderContent::Empty)
}

/// # Errors
/// If the folder has files of the set of `request` that are not in `own`.
fn refuse_foreign_files(request: &ShardRequest<'_>, own: &[String]) -> Result<()> {
    let found = files_of_set(request);
    found.iter().find(|name| !own.contains(name)).map_or(Ok(()), |name| {
        let message =
            format!("contains {name}, which is not listed in a {CARD}; move it away, or name a different folder");
        Err(DataError::file(request.folder, message))
    })
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

/// The files that an earlier preparation wrote into the folder of `request`: those that its card or state lists. Without either there are
/// none, whatever their names.
fn own_files(request: &ShardRequest<'_>, card: Option<&Card>) -> Vec<String> {
    let folder = request.folder;
    let mut names = Vec::new();
    if let Some(card) = card {
        names.extend(card.shards.iter().map(|shard| shard.file.clone()));
    }
    if let Ok(Some(state)) = ResumeState::read(folder) {
        names.extend(state.shards.iter().map(|shard| shard.file.clone()));
        // The last shard may have been completed after the state was saved.
        let Settings { shards: format, name, .. } = &state.settings;
        names.extend(file_names(folder).into_iter().filter(|file| format.is_in_set(name, file)));
        names.push(STATE.to_owned());
    }
    // Anyone may have written the card: only names of files in this folder count.
    names.retain(|name| Path::new(name).file_name() == Some(name.as_ref()) && is_ours(name));
    if card.is_some() {
        names.push(CARD.to_owned());
    }
    let has_own = |name: &str| card.is_some_and(|card| was_written_with(card, folder, name));
    names.extend([META].into_iter().filter(|name| has_own(name)).map(str::to_owned));
    names
}

/// True if the file `name` in `folder` still has the content that was written with the shards of `card`.
fn was_written_with(card: &Card, folder: &Path, name: &str) -> bool {
    let found = || read_regular(&folder.join(name)).map(|bytes| blake3::hash(&bytes).to_hex().to_string());
    card.files.get(name).is_some_and(|hash| found().is_ok_and(|found| found == *hash))
}

/// Removes the files `names` of an earlier preparation from `folder`, and its unfinished ones.
pub(super) fn remove_set(folder: &Path, names: &[String]) -> Result<()> {
    remove_unfinished(folder, &[]);
    // The card and the state go last: after a kill they still say whose the other files are.
    let (records, files): (Vec<_>, Vec<_>) = names.iter().partition(|name| [CARD, STATE].contains(&name.as_str()));
    files.into_iter().chain(records).try_for_each(|name| remove_if_there(&folder.join(name)))
}

/// Removes the file `path`, if there is one.
pub(super) fn remove_if_there(path: &Path) -> Result<()> {
    if_present(fs::remove_file(path)).map(drop).map_err(DataError::io(path))
}

/// The path of the file `name` until it is complete.
pub(super) fn unfinished_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!(".{name}.partial"))
}

/// Removes unfinished files of an earlier preparation, whose card or state is there, if they are not in `kept`.
pub(super) fn remove_unfinished(folder: &Path, kept: &[OpenFile]) {
    for name in file_names(folder) {
        let target = name.strip_prefix('.').and_then(|name| name.strip_suffix(".partial"));
        if target.is_some_and(|target| is_ours(target) && !kept.iter().any(|open| open.file == target)) {
            // A file that stays takes space, but does no harm.
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
    read_regular(path).is_ok_and(|found| found == content || tokenizer.is_content(&found))
}

/// Checks the files beside the shards before anything is written. With `force`, those that were written with the shards of an earlier card
/// are replaced at once, so that the command continues without `force` after a kill.
///
/// # Errors
/// If a file has other content, unless it is replaced.
pub(super) fn check_companion_files(request: &ShardRequest<'_>, tokenizer: &TextTokenizer) -> Result<()> {
    let folder = request.folder;
    let card = Card::read(folder).filter(|_| request.force);
    for (name, content) in companion_files(request, tokenizer) {
        let path = folder.join(name);
        if path.symlink_metadata().is_err() || is_same(&path, &content, tokenizer) {
            continue;
        }
        if !card.as_ref().is_some_and(|card| was_written_with(card, folder, name)) {
            let message = format!("contains a different {name}; move it away, or name a different folder");
            return Err(DataError::file(folder, message));
        }
        write_file(&path, &content)?;
    }
    Ok(())
}

/// Checks the files beside finished shards.
///
/// # Errors
/// If one is missing or has other content.
pub(super) fn verify_companion_files(request: &ShardRequest<'_>, tokenizer: &TextTokenizer) -> Result<()> {
    let differs = |(name, content): &(&str, Vec<u8>)| !is_same(&request.folder.join(name), content, tokenizer);
    companion_files(request, tokenizer).iter().find(|file| differs(file)).map_or(Ok(()), |(name, _)| {
        let message = format!("{name} is missing, or was changed after the shards were written; remove it, and use --force to write everything again");
        Err(DataError::file(request.folder, message))
    })
}

/// Writes the files beside the shards. Returns the hashes of those that were written, and whether there is a tokenizer.
///
/// # Errors
/// If one cannot be written.
pub(super) fn write_companion_files(
    request: &ShardRequest<'_>,
    tokenizer: &TextTokenizer,
) -> Result<(BTreeMap<String, String>, bool)> {
    let files = companion_files(request, tokenizer);
    let mut written = BTreeMap::new();
    for (name, content) in &files {
        let path = request.folder.join(name);
        if !is_same(&path, content, tokenizer) {
            write_file(&path, content)?;
        }
        // The file that the tokenizer was read from may have other white space: then it is not ours.
        if read_regular(&path).is_ok_and(|found| found == *content) {
            written.insert((*name).to_owned(), blake3::hash(content).to_hex().to_string());
        }
    }
    Ok((written, files.iter().any(|(name, _)| *name == TOKENIZER)))
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
    let write = |mut file: File| -> io::Result<()> {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        runner_files::sync_dir(folder)
    };
    let created = File::create(&unfinished).map_err(write_error(path))?;
    write(created).map_err(|error| {
        let _ = fs::remove_file(&unfinished);
        write_error(path)(error)
    })
}

/// An error of writing `path`. For a full disk it says how to continue.
pub(super) fn write_error(path: &Path) -> impl FnOnce(io::Error) -> DataError + '_ {
    move |source| {
        let cause = match source.kind() {
            io::ErrorKind::StorageFull => "the disk is full",
            io::ErrorKind::QuotaExceeded => "the disk quota is used up",
            _ => return DataError::Io { path: path.to_owned(), source },
        };
        let text = format!("{cause}; make room, and run the same command again to continue");
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
        remove_unfinished(
            dir.path(),
            &[OpenFile { split: "train".into(), file: "train.bin".into(), tokens: 0, blake3: String::new() }],
        );
        let mut found = file_names(dir.path());
        found.sort();
        let mut expected: Vec<_> = theirs.into_iter().chain([".train.bin.partial"]).collect();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}
