//! Inspects shards of other trainers. They are read in place, so a file may be larger than memory.

use std::path::PathBuf;

use super::report::{InspectedFile, InspectionReport};
use super::tally::TokenTally;
use crate::error::{DataError, Result};
use crate::shard::Card;
use crate::token_files::recognize;
use crate::token_stream::TokenStream;
use crate::tokenizer::TextTokenizer;
use runner_spec::experiment::TokenType;

/// Tokens between two reports of progress.
const REPORT_INTERVAL: u64 = 1 << 24;
/// The tokens between documents of GPT-2 and Llama 3.
const KNOWN_ENDS: [u32; 2] = [50_256, 128_000];

/// Counts the tokens of `files`, which are read as one stream, in this order. Those without a header have the type `dtype`, or 16 bits.
/// `end` is the token between documents, if the caller knows it.
/// The result has the first `texts` documents and the `top` most frequent ids. `progress` receives the bytes that were read, and the bytes
/// of all files.
///
/// # Errors
/// If a file holds no tokens, or does not fit its header.
pub fn inspect_tokens(
    files: &[PathBuf],
    dtype: Option<TokenType>,
    tokenizer: Option<&TextTokenizer>,
    end: Option<u32>,
    texts: usize,
    top: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<InspectionReport> {
    let (mut listed, mut segments) = (Vec::new(), Vec::new());
    for path in files {
        let bytes = std::fs::metadata(path).map_err(DataError::io(path))?.len();
        let (segment, format) = recognize(path, dtype)?;
        segment.check_values()?;
        let (bits, tokens) = (segment.kind.bytes() as u32 * 8, segment.count);
        listed.push(InspectedFile { path: path.clone(), format, bytes, bits, tokens });
        segments.push(segment);
    }
    let stream = TokenStream::new(segments);
    let total: u64 = listed.iter().map(|file| file.bytes).sum();
    let card = files.first().and_then(|path| Card::read(path.parent()?));
    let (end, from) = end_of_text(end, tokenizer, card.as_ref(), &stream)?;

    let mut tally = TokenTally::new(texts);
    let (count, mut position) = (stream.count(), 0);
    let before = end.is_some() && token_at(&stream, 0)? == end;
    while position < count {
        let stretch = REPORT_INTERVAL.min(count - position);
        let mut at = position;
        stream.read(position, stretch, |token| {
            let is_end = Some(token) == end;
            // The token ends a document, or begins the next one.
            if is_end && (!before || at > 0) {
                tally.end_document();
            }
            tally.add(token, !is_end);
            at += 1;
        })?;
        position += stretch;
        progress((position as f64 / count as f64 * total as f64) as u64, total);
    }
    if tally.is_in_document() || before {
        tally.end_document();
    }
    Ok(InspectionReport {
        files: listed,
        bytes: total,
        tokens: tally.tokens,
        end_of_text: end,
        end_of_text_from: from,
        vocabulary: tally.vocabulary(top, tokenizer),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn inspect(tokens: &[u16], end: Option<u32>) -> InspectionReport {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.bin");
        std::fs::write(&path, tokens.iter().flat_map(|t| t.to_le_bytes()).collect::<Vec<_>>()).unwrap();
        inspect_tokens(&[path], None, None, end, 9, 9, &|_, _| ()).unwrap()
    }

    #[test]
    fn documents_are_found_wherever_their_mark_is() {
        let lengths = |tokens: &[u16], end| {
            let found = inspect(tokens, end);
            let lengths: Vec<u64> = found.texts.iter().map(|sample| sample.length).collect();
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
