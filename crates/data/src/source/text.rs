//! Plain text: each file is a document, read in blocks and handed on in pieces that end at cut points of the tokenizer.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use super::piece::{DOCUMENT_LIMIT, PieceSink, TextPiece, document_limit};
use crate::cut_points::CutPoints;
use crate::error::DataError;

const BLOCK: usize = 256 << 10;

pub(super) fn read(path: &Path, cut: CutPoints, sink: &mut PieceSink<'_>) -> Result<(), DataError> {
    let mut file = File::open(path).map_err(DataError::io(path))?;
    let mut starts_document = true;
    // Text that has not been handed on yet, and the first bytes of a character whose rest is in the next block.
    let mut pending = String::new();
    let mut partial: Vec<u8> = Vec::new();
    let mut offset = 0;
    let mut block = vec![0; BLOCK];
    loop {
        let read = file.read(&mut block).map_err(DataError::io(path))?;
        if read == 0 {
            break;
        }
        partial.extend_from_slice(&block[..read]);
        let seen = pending.len();
        let valid = match std::str::from_utf8(&partial) {
            Ok(text) => text,
            Err(error) if error.error_len().is_some() => {
                return Err(DataError::not_utf8(path, offset + error.valid_up_to() as u64));
            }
            // The last character continues in the next block.
            Err(_) => partial.utf8_chunks().next().map_or("", |chunk| chunk.valid()),
        };
        pending.push_str(valid);
        offset += valid.len() as u64;
        let taken = valid.len();
        partial.drain(..taken);

        if let Some(end) = cut.last_in(&pending, seen) {
            let rest = pending.split_off(end);
            sink(TextPiece { text: std::mem::replace(&mut pending, rest), starts_document })?;
            starts_document = false;
        }
        if pending.len() > DOCUMENT_LIMIT {
            let limit = document_limit();
            let message = match cut {
                CutPoints::Never => {
                    "this tokenizer can only take a document whole; give one document a line with data.train.jsonl, or a row with data.train.parquet"
                }
                _ => "is this text?",
            };
            return Err(DataError::file(path, format!("more than {limit} without a place to cut: {message}")));
        }
    }
    if !partial.is_empty() {
        return Err(DataError::not_utf8(path, offset));
    }
    if !pending.is_empty() {
        sink(TextPiece { text: pending, starts_document })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(bytes: &[u8], cut: CutPoints) -> Result<Vec<TextPiece>, DataError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        std::fs::write(&path, bytes).unwrap();
        let mut pieces = Vec::new();
        read(&path, cut, &mut |piece| {
            pieces.push(piece);
            Ok(())
        })?;
        Ok(pieces)
    }

    #[test]
    fn pieces_join_to_the_file_whatever_the_block_border_hits() {
        // Three-byte characters do not divide the block evenly, so a character straddles each border.
        let text = "日本 語x ".repeat(BLOCK / 4);
        for cut in [CutPoints::Anywhere, CutPoints::Words, CutPoints::Never] {
            let pieces = pieces(text.as_bytes(), cut).unwrap();
            assert_eq!(pieces.iter().map(|p| p.text.as_str()).collect::<String>(), text);
            assert!(pieces.iter().enumerate().all(|(i, p)| p.starts_document == (i == 0)));
            assert_eq!(pieces.len() > 1, cut != CutPoints::Never);
        }
        assert_eq!(pieces(b"", CutPoints::Words).unwrap(), []);
    }

    #[test]
    fn bad_bytes_are_located() {
        let mut bytes = vec![b'a'; BLOCK + 10];
        bytes.push(0xff);
        let error = |bytes: &[u8]| pieces(bytes, CutPoints::Words).unwrap_err().to_string();
        assert!(
            error(&bytes).ends_with(&format!("a.txt: not UTF-8 text: the first bad byte is at offset {}", BLOCK + 10))
        );
        // The end of the file cuts a character.
        assert!(error("ab日".as_bytes().split_last().unwrap().1).ends_with("at offset 2"));
    }
}
