//! The folder of the shards. They are written to a folder within it, and moved when all of them are complete: the files that the card
//! there lists, and last the card. The same command completes the moves of a process that was killed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;

use super::card::{CARD, Card, Settings};
use super::format::ShardFormat;
use super::nanogpt_meta::{META, meta};
use super::request::{Report, ShardEvent, ShardRequest};
use crate::error::{DataError, Result};
use crate::hashing::hash_file;
use crate::progress::Progress;
use crate::tokenizer::TextTokenizer;
use runner_files::{TEMPORARY_PREFIX, children, if_present, is_temporary_name, read_regular, sync_dir};

/// The tokenizer beside the shards.
pub(crate) const TOKENIZER: &str = "tokenizer.json";

/// The prefix of the folder in which shards are written.
pub(super) fn stage_prefix() -> String {
    format!("{TEMPORARY_PREFIX}shards-")
}

/// Completes or removes what killed processes left in `folder`, which is locked.
pub(super) fn clean(folder: &Path) -> Result<()> {
    let is_stage = |path: &PathBuf| path.file_name().is_some_and(|name| is_temporary_name(name, &stage_prefix()));
    children(folder).iter().filter(|path| is_stage(path)).try_for_each(|stage| match Card::read(stage) {
        Some(card) => publish(stage, &card, folder),
        None => fs::remove_dir_all(stage).map_err(DataError::io(stage)),
    })
}

/// Moves the files of `stage`, which `card` describes, to `folder`. Removes the shards of an earlier set that the new one lacks.
pub(super) fn publish(stage: &Path, card: &Card, folder: &Path) -> Result<()> {
    let is_listed = |name: &str| card.files_of_set().any(|file| file == name);
    if let Some(earlier) = Card::read(folder) {
        let stale = earlier.files_of_set().filter(|name| *name != TOKENIZER && !is_listed(name));
        stale
            .map(|name| folder.join(name))
            .try_for_each(|path| if_present(fs::remove_file(&path)).map(drop).map_err(DataError::io(&path)))?;
    }
    let (cards, files): (Vec<PathBuf>, Vec<PathBuf>) =
        children(stage).into_iter().partition(|path| path.file_name().is_some_and(|name| name == CARD));
    for paths in [files, cards] {
        for path in &paths {
            let target = folder.join(path.file_name().unwrap_or_default());
            fs::rename(path, &target).map_err(DataError::io(&target))?;
        }
        sync_dir(folder).map_err(DataError::io(folder))?;
    }
    fs::remove_dir(stage).map_err(DataError::io(stage))
}

/// The card of the shards in the folder of `request` if they are those of `settings`; `None` if shards are to be written.
///
/// # Errors
/// If the folder has shards of other settings, damaged ones, or files that no preparation wrote. With `force`, only the last.
pub(super) fn read_finished(
    request: &ShardRequest<'_>,
    settings: &Settings,
    tokenizer: &TextTokenizer,
    report: &Report<'_>,
) -> Result<Option<Card>> {
    let folder = request.folder;
    let refuse = |message: String| Err(DataError::file(folder, message));
    let card = Card::read(folder);
    if card.is_none() && folder.join(CARD).symlink_metadata().is_ok() {
        return refuse(format!("contains a {CARD} of something else; move it away, or name a different folder"));
    }
    if let Some(card) = card.as_ref().filter(|_| !request.force) {
        if card.settings != *settings {
            let differences = settings.differences(&card.settings);
            return refuse(format!("contains a finished set of shards: {differences}; use --force to replace it"));
        }
        let damage = find_damage(request, card, report)?;
        let differs = |(name, content): &(&str, Vec<u8>)| !is_same(&folder.join(name), content, tokenizer);
        let companion = companion_files(request, tokenizer).into_iter().find(differs).map(|(name, _)| name.to_owned());
        if let Some(name) = damage.or(companion) {
            let message = "is missing, or was changed after it was written; use --force to write everything again";
            return refuse(format!("{name} {message}"));
        }
        return Ok(Some(card.clone()));
    }
    let is_listed = |name: &str| card.as_ref().is_some_and(|card| card.files_of_set().any(|file| file == name));
    let names = children(folder).into_iter().filter_map(|path| path.file_name()?.to_str().map(str::to_owned));
    if let Some(name) = names.filter(|name| request.format.is_in_set(request.name, name)).find(|name| !is_listed(name))
    {
        return refuse(format!(
            "contains {name}, which is not listed in a {CARD}; move it away, or name a different folder"
        ));
    }
    for (name, content) in companion_files(request, tokenizer) {
        let path = folder.join(name);
        let written = card.as_ref().and_then(|card| card.files.get(name));
        let was_written = |hash: &String| hash_file(&path, &|_| ()).is_ok_and(|found| found == *hash);
        if path.symlink_metadata().is_ok() && !is_same(&path, &content, tokenizer) && !written.is_some_and(was_written)
        {
            return refuse(format!("contains a different {name}; move it away, or name a different folder"));
        }
    }
    Ok(None)
}

/// The name of a shard of `card` that changed after it was written, if there is one.
fn find_damage(request: &ShardRequest<'_>, card: &Card, report: &Report<'_>) -> Result<Option<String>> {
    let size = |name: &String| fs::metadata(request.folder.join(name)).map_or(0, |metadata| metadata.len());
    let bytes_total = card.shards.iter().map(|shard| size(&shard.file)).sum();
    let bytes_done = AtomicU64::new(0);
    let progress = |read: u64| {
        let bytes_done = bytes_done.fetch_add(read, Ordering::Relaxed) + read;
        report(ShardEvent::Preparing(Progress::Verifying { bytes_done, bytes_total }));
    };
    let check = |(name, hash): (&str, &String)| match hash_file(&request.folder.join(name), &progress) {
        Ok(found) => Ok((found != *hash).then(|| name.to_owned())),
        Err(DataError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(Some(name.to_owned())),
        Err(error) => Err(error),
    };
    let files: Vec<(&str, &String)> = card.shards.iter().map(|shard| (shard.file.as_str(), &shard.blake3)).collect();
    let checked: Vec<Result<_>> = files.into_par_iter().map(check).collect();
    let damaged: Vec<Option<String>> = checked.into_iter().collect::<Result<_>>()?;
    Ok(damaged.into_iter().flatten().next())
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

/// Writes the files beside the shards to `stage`, unless the folder has them. Returns the hashes of those that a preparation wrote, and
/// whether there is a tokenizer.
pub(super) fn write_companion_files(
    request: &ShardRequest<'_>,
    stage: &Path,
    tokenizer: &TextTokenizer,
) -> Result<(BTreeMap<String, String>, bool)> {
    let files = companion_files(request, tokenizer);
    let mut written = BTreeMap::new();
    for (name, content) in &files {
        let path = request.folder.join(name);
        let is_there = is_same(&path, content, tokenizer);
        if !is_there {
            write_file(&stage.join(name), content)?;
        }
        // The file that the tokenizer was read from may have other white space: then it is not ours.
        if !is_there || read_regular(&path).is_ok_and(|found| found == *content) {
            written.insert((*name).to_owned(), blake3::hash(content).to_hex().to_string());
        }
    }
    Ok((written, files.iter().any(|(name, _)| *name == TOKENIZER)))
}

/// Writes a small file, and makes it durable.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(DataError::io(path))
}
