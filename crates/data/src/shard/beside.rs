//! What lies beside shards and is not theirs alone, `tokenizer.json` and `meta.pkl`: one of other content, which someone else may have
//! put there, is only replaced on demand.

use std::fs;
use std::path::Path;

use super::format::ShardFormat;
use super::job::{ShardRequest, TOKENIZER};
use super::meta::{META, meta};
use super::work::write;
use crate::error::DataError;
use crate::tokenizer::TextTokenizer;

/// The files of a set in `format`, with their content.
fn files(format: ShardFormat, tokenizer: &TextTokenizer) -> Vec<(&'static str, Vec<u8>)> {
    let json = tokenizer.to_huggingface().ok().map(|json| (TOKENIZER, json.into_bytes()));
    let characters = if format == ShardFormat::NanoGpt { tokenizer.characters() } else { None };
    json.into_iter().chain(characters.map(|characters| (META, meta(characters)))).collect()
}

/// Whether what is at `path` is `content`, or the file that `tokenizer` was read from.
fn is_same(path: &Path, content: &[u8], tokenizer: &TextTokenizer) -> bool {
    fs::read(path).is_ok_and(|found| found == content || blake3::hash(&found).to_hex().as_str() == tokenizer.hash())
}

/// Looks at the folder before anything is written. With `force` what is there is replaced at once, so that one that is killed is gone on
/// with without.
///
/// # Errors
/// If a file of other content is there, unless `force`.
pub(super) fn clear_the_way(request: &ShardRequest<'_>, tokenizer: &TextTokenizer) -> Result<(), DataError> {
    let is_there = |name: &str| request.folder.join(name).symlink_metadata().is_ok();
    if ![TOKENIZER, META].into_iter().any(is_there) {
        return Ok(());
    }
    for (name, content) in files(request.format, tokenizer) {
        let path = request.folder.join(name);
        if !is_there(name) || is_same(&path, &content, tokenizer) {
            continue;
        }
        if !request.force {
            return Err(DataError::file(request.folder, format!("holds another {name} already; --force replaces it")));
        }
        write(&path, &content)?;
    }
    Ok(())
}

/// Writes the files that are not there. Whether there is a tokenizer now.
///
/// # Errors
/// If one cannot be written.
pub(super) fn complete(request: &ShardRequest<'_>, tokenizer: &TextTokenizer) -> Result<bool, DataError> {
    let files = files(request.format, tokenizer);
    for (name, content) in &files {
        let path = request.folder.join(name);
        if !is_same(&path, content, tokenizer) {
            write(&path, content)?;
        }
    }
    Ok(files.iter().any(|(name, _)| *name == TOKENIZER))
}
