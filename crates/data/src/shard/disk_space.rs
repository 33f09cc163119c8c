//! The disk space for the files of the hub, compared with the free space before the first of them is downloaded.

use super::card::CARD;
use super::request::ShardRequest;
use super::state::ResumeState;
use crate::error::Result;
use crate::hub::{HeldFiles, HubSplit, check_free_space};
use crate::split_name::SplitName;
use runner_spec::experiment::Tokenizer;

/// Bytes of a file for each token of a subword or word tokenizer, for an estimate: English text has four to five, and parquet files are
/// compressed.
const FILE_BYTES_PER_TOKEN: u64 = 4;

/// Checks that the disk has room for the files of all `sources` that are in the cache at the same time. The last source is that of
/// training. A finished set needs none.
///
/// # Errors
/// If the disk has too little free space.
pub(super) fn check_space(request: &ShardRequest<'_>, sources: &[Option<&HubSplit>]) -> Result<()> {
    let Some(hub) = request.hub else { return Ok(()) };
    if !request.force && request.folder.join(CARD).exists() {
        return Ok(());
    }
    let state = if request.force { None } else { ResumeState::read(request.folder)? };
    let state = state.filter(|state| !state.is_empty());
    let tokenizer = &request.data.tokenizer;
    let makes_tokenizer = matches!(tokenizer, Tokenizer::Chars {} | Tokenizer::Bpe { .. } | Tokenizer::Words { .. });
    let bytes_per_token = match tokenizer {
        Tokenizer::Bytes {} | Tokenizer::Chars {} => 1,
        _ => FILE_BYTES_PER_TOKEN,
    };
    let bytes = |tokens: u64| tokens.saturating_mul(bytes_per_token);
    let written = state.iter().flat_map(|state| state.shards_of(SplitName::Train)).map(|shard| shard.tokens).sum();
    let mut needed = 0_u64;
    for (index, source) in sources.iter().enumerate() {
        let Some(split) = source else { continue };
        let first = match &state {
            Some(state) if state.pass > index => continue,
            Some(state) if state.pass == index => state.position.file,
            _ => 0,
        };
        let is_training = index + 1 == sources.len();
        // Nothing tells the bytes of documents: for a limit of documents the first files are counted.
        let limit_bytes = match (request.max_tokens, request.max_rows) {
            (Some(tokens), _) => Some(bytes(tokens.saturating_sub(written))),
            (None, rows) => rows.map(|_| 0),
        };
        // The tokenizer is made from all files. A state shows that it was made.
        let held = if is_training && makes_tokenizer && state.is_none() {
            HeldFiles::default()
        } else {
            HeldFiles {
                limit_bytes: limit_bytes.filter(|_| is_training),
                unsaved_bytes: request.remove_downloads.then(|| bytes(request.shard_tokens)),
            }
        };
        needed = needed.saturating_add(split.downloads.needed_bytes(first, &held));
    }
    Ok(check_free_space(&hub.settings.cache, needed)?)
}
