//! Plain text: each file is a document, read in blocks and handed on in pieces that end at cut points of the tokenizer. A byte order
//! mark at the start of a file is not text.

use std::io::BufRead as _;
use std::path::Path;

use super::compressed::open_text;
use super::piece::{MAX_DOCUMENT_BYTES, PieceSink, TextPiece, describe_document_limit};
use crate::cut_points::CutPoints;
use crate::error::{DataError, Result};

pub(super) fn read(path: &Path, cut: CutPoints, sink: &mut PieceSink<'_>) -> Result<()> {
    let (mut file, mark) = open_text(path)?;
    let mut starts_document = true;
    // Text that has not been handed on yet, and the first bytes of a character whose rest is in the next block.
    let mut pending = String::new();
    let mut partial: Vec<u8> = Vec::new();
    let mut offset = mark as u64;
    loop {
        let block = file.fill_buf().map_err(DataError::io(path))?;
        if block.is_empty() {
            break;
        }
        partial.extend_from_slice(block);
        let read = block.len();
        file.consume(read);
        let seen = pending.len();
        let valid = match std::str::from_utf8(&partial) {
            Ok(text) => text,
            Err(error) if error.error_len().is_some() => {
                return Err(DataError::not_utf8(path, offset + error.valid_up_to() as u64));
            }
            // The last character continues in the next block.
            Err(_) => partial.utf8_chunks().next().map_or("", |chunk| chunk.valid()),
        };
        if let Some(at) = valid.find('\0') {
            let (at, advice) = (offset + at as u64, "give files of tokens as `tokens: {files: […]}`");
            return Err(DataError::file(path, format!("not a text file: it has a zero byte at offset {at}; {advice}")));
        }
        pending.push_str(valid);
        offset += valid.len() as u64;
        let taken = valid.len();
        partial.drain(..taken);

        if let Some(end) = cut.last_in(&pending, seen) {
            let rest = pending.split_off(end);
            sink(TextPiece { text: std::mem::replace(&mut pending, rest), starts_document })?;
            starts_document = false;
        }
        if pending.len() > MAX_DOCUMENT_BYTES {
            let message = match cut {
                CutPoints::Never => {
                    "this tokenizer reads whole documents, so make each a record, such as a line of `jsonl`"
                }
                _ => "is this text?",
            };
            let limit = describe_document_limit();
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
    use super::super::compressed::BLOCK_BYTES;
    use super::*;

    fn pieces(bytes: &[u8], cut: CutPoints) -> Result<Vec<TextPiece>> {
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
        let text = "日本 語x ".repeat(BLOCK_BYTES / 4);
        for cut in [CutPoints::Anywhere, CutPoints::Words, CutPoints::Never] {
            let pieces = pieces(text.as_bytes(), cut).unwrap();
            assert_eq!(pieces.iter().map(|p| p.text.as_str()).collect::<String>(), text);
            assert!(pieces.iter().enumerate().all(|(i, p)| p.starts_document == (i == 0)));
            assert_eq!(pieces.len() > 1, cut != CutPoints::Never);
        }
        assert_eq!(pieces(b"", CutPoints::Words).unwrap(), []);
    }

    #[test]
    fn skips_a_byte_order_mark() {
        let texts = |text: &str| -> Vec<String> {
            pieces(text.as_bytes(), CutPoints::Never).unwrap().into_iter().map(|piece| piece.text).collect()
        };
        assert_eq!(texts("\u{feff}a\u{feff}"), ["a\u{feff}"]);
        assert_eq!(texts("\u{feff}"), [""; 0]);
    }

    #[test]
    fn bad_bytes_are_located() {
        let mut bytes = vec![b'a'; BLOCK_BYTES + 10];
        bytes.push(0xff);
        let error = |bytes: &[u8]| pieces(bytes, CutPoints::Words).unwrap_err().to_string();
        assert!(
            error(&bytes)
                .ends_with(&format!("a.txt: not UTF-8 text: the first bad byte is at offset {}", BLOCK_BYTES + 10))
        );
        // The end of the file cuts a character.
        assert!(error("ab日".as_bytes().split_last().unwrap().1).ends_with("at offset 2"));
    }
}
