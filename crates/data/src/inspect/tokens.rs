//! Inspects files of tokens: shards of other trainers and entries of the cache. They are read in place, so a file may be larger than memory.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::report::{InspectedFile, InspectionReport};
use super::tally::TokenTally;
use crate::error::{DataError, Result};
use crate::shard::Card;
use crate::token_files::recognize;
use crate::token_store::{MAGIC, TokenStore};
use crate::token_stream::TokenStream;
use crate::tokenizer::TextTokenizer;
use runner_files::open_regular;

/// Tokens between two reports of progress.
const REPORT_INTERVAL: u64 = 1 << 24;
/// The tokens between documents of GPT-2 and Llama 3.
const KNOWN_ENDS: [u32; 2] = [50_256, 128_000];

/// Counts the tokens of `files`, which are read as one stream, in this order. `end` is the token between documents, if the caller knows it.
/// The result has the first `texts` documents and the `top` most frequent ids. `progress` receives the bytes that were read, and the bytes
/// of all files.
///
/// # Errors
/// If a file holds no tokens, or does not fit its header.
pub fn inspect_tokens(
    files: &[PathBuf],
    tokenizer: Option<&TextTokenizer>,
    end: Option<u32>,
    texts: usize,
    top: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<InspectionReport> {
    let (mut listed, mut segments, mut store) = (Vec::new(), Vec::new(), None);
    for path in files {
        let bytes = std::fs::metadata(path).map_err(DataError::io(path))?.len();
        let (segment, format) = if is_cache(path) {
            if files.len() > 1 {
                return Err(DataError::file(path, "an entry of the cache, which is inspected alone"));
            }
            let opened = TokenStore::open(path.parent().unwrap_or(Path::new(".")))?;
            let segment = opened.tokens.segment_at(0).map(|(segment, _)| segment.clone());
            store = Some(opened);
            (segment.ok_or_else(|| DataError::damaged(path, "no tokens"))?, "cache")
        } else {
            recognize(path)?
        };
        let (bits, tokens) = (Some(segment.width.bytes() as u32 * 8), Some(segment.count));
        listed.push(InspectedFile { path: path.clone(), format, bytes, bits, tokens, rows: None });
        segments.push(segment);
    }
    let stream = TokenStream::new(segments);
    let total: u64 = listed.iter().map(|file| file.bytes).sum();
    let card = files.first().and_then(|path| Card::read(path.parent()?));
    let (end, from) = end_of_text(end, tokenizer, card.as_ref(), &stream)?;

    let mut tally = TokenTally::new(texts);
    let (count, mut position) = (stream.count(), 0);
    let before = end.is_some() && token_at(&stream, 0)? == end;
    // The starts of documents, which only a cache entry has.
    let starts = store.as_ref().map(TokenStore::document_starts).transpose()?;
    let mut starts = starts.into_iter().flatten().skip(1).peekable();
    let known = store.is_some();
    while position < count {
        let stretch = REPORT_INTERVAL.min(count - position);
        let mut at = position;
        stream.read(position, stretch, |token| {
            let is_end = Some(token) == end;
            if known {
                while starts.next_if(|&start| start <= at).is_some() {
                    _ = tally.end_document();
                }
            } else if is_end && (!before || at > 0) {
                // The token ends a document, or begins the next one.
                _ = tally.end_document();
            }
            tally.add(token, !is_end);
            at += 1;
        })?;
        position += stretch;
        progress((position as f64 / count as f64 * total as f64) as u64, total);
    }
    if tally.is_in_document() || (before && !known) {
        _ = tally.end_document();
    }
    Ok(InspectionReport {
        files: listed,
        bytes: total,
        text: None,
        tokens: Some(tally.tokens),
        end_of_text: end,
        end_of_text_from: from,
        vocabulary: Some(tally.vocabulary(top, tokenizer)),
        texts: tally.samples(tokenizer),
        documents: tally.documents,
    })
}

/// The token at `position`, if there is one.
fn token_at(stream: &TokenStream, position: u64) -> Result<Option<u32>> {
    let mut found = None;
    if position < stream.count() {
        stream.read(position, 1, |token| found = Some(token))?;
    }
    Ok(found)
}

/// The token between documents, and how it is known.
fn end_of_text(
    given: Option<u32>,
    tokenizer: Option<&TextTokenizer>,
    card: Option<&Card>,
    stream: &TokenStream,
) -> Result<(Option<u32>, Option<&'static str>)> {
    if given.is_some() {
        return Ok((given, Some("given")));
    }
    if let Some(end) = tokenizer.and_then(TextTokenizer::end_of_text) {
        return Ok((Some(end), Some("tokenizer")));
    }
    if let Some(end) = card.and_then(|card| card.tokenizer.end_of_text) {
        return Ok((Some(end), Some("card")));
    }
    let ends = [token_at(stream, 0)?, token_at(stream, stream.count().saturating_sub(1))?];
    let guess = ends.into_iter().flatten().find(|token| KNOWN_ENDS.contains(token));
    Ok((guess, guess.map(|_| "guessed")))
}

/// True if the file `path` holds the tokens of a cache entry.
fn is_cache(path: &Path) -> bool {
    let mut bytes = [0; MAGIC.len()];
    open_regular(path).is_ok_and(|mut file| file.read_exact(&mut bytes).is_ok()) && &bytes == MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inspect(tokens: &[u16], end: Option<u32>) -> InspectionReport {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.bin");
        std::fs::write(&path, tokens.iter().flat_map(|t| t.to_le_bytes()).collect::<Vec<_>>()).unwrap();
        inspect_tokens(&[path], None, end, 9, 9, &|_, _| ()).unwrap()
    }

    #[test]
    fn documents_are_found_wherever_their_mark_is() {
        let lengths = |tokens: &[u16], end| {
            let found = inspect(tokens, end);
            let lengths: Vec<u64> = found.texts.iter().map(|sample| sample.length.unwrap()).collect();
            assert_eq!(found.documents.count as usize, lengths.len());
            (lengths, found.end_of_text_from)
        };
        let e = 50_256;
        assert_eq!(lengths(&[e, 1, 2, e, 3, e, e, 4], None), (vec![2, 1, 0, 1], Some("guessed")));
        assert_eq!(lengths(&[1, 2, e, 3, e], None), (vec![2, 1], Some("guessed")));
        // In the middle of a document at both ends.
        assert_eq!(lengths(&[1, 2, 9, 3], Some(9)), (vec![2, 1], Some("given")));
        assert_eq!(lengths(&[1, 2, 9, 3], None), (vec![4], None));
        assert_eq!(lengths(&[e], None), (vec![0], Some("guessed")));
    }
}
