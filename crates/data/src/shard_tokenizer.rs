//! Whether token shards were made with the tokenizer that decodes them.

use std::collections::BTreeSet;
use std::path::Path;

use super::shard::{Card, TOKENIZER};
use super::source::LocatedSource;
use super::tokenizer::{TextTokenizer, load_tokenizer, token_difference};
use runner_spec::experiment::Tokenizer;

/// The warning about shards of `source` that were made with a tokenizer whose ids stand for different text than those of `tokenizer`. A
/// `dataset.json` that lists the shards names it; other shards do not record it.
pub(super) fn describe_foreign_shards(source: &LocatedSource, tokenizer: &TextTokenizer) -> Option<String> {
    let folders: BTreeSet<&Path> = source.files.iter().filter_map(|file| file.path.parent()).collect();
    folders.into_iter().find_map(|folder| {
        let card = Card::read(folder)?;
        let is_listed = |path: &Path| card.shards.iter().any(|shard| path == folder.join(&shard.file));
        if card.tokenizer.hash == tokenizer.hash() || !source.files.iter().any(|file| is_listed(&file.path)) {
            return None;
        }
        let made_with = load_tokenizer(&Tokenizer::File(folder.join(TOKENIZER))).ok()?;
        let difference = token_difference(tokenizer, &made_with)?;
        let (key, made_with) = (source.split.key(), folder.join(TOKENIZER));
        Some(format!(
            "{key}: `data.tokenizer` differs from the tokenizer that made the shards: {difference}; use {}",
            made_with.display()
        ))
    })
}
