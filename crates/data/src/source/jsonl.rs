//! JSON lines: each line is an object with a document.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

use serde_json::{Map, Value};

use super::piece::{DOCUMENT_LIMIT, PieceSink, TextPiece, document_limit};
use super::text_selector::{TextSelector, json_type};
use crate::error::DataError;

/// The mistake of a file that is not JSON lines, but an array.
const ONE_ARRAY: &str = "the file is one JSON array (`json`); JSON lines have one object a line";

pub(super) fn read(path: &Path, text: &TextSelector, sink: &mut PieceSink<'_>) -> Result<(), DataError> {
    for_each_line(path, &mut |line, object| {
        let wrong = |message: String| DataError::Line { path: path.to_owned(), line, message };
        if let Some(text) = text.extract(object).map_err(wrong)? {
            sink(TextPiece::whole_document(text))?;
        }
        Ok(true)
    })
}

/// Hands each line's number (from 1) and object to `sink` until it returns false. Blank lines are skipped.
///
/// # Errors
/// If a line is not a JSON object, or `sink` fails.
pub(crate) fn for_each_line(
    path: &Path,
    sink: &mut dyn FnMut(u64, Map<String, Value>) -> Result<bool, DataError>,
) -> Result<(), DataError> {
    let mut reader = BufReader::with_capacity(1 << 20, File::open(path).map_err(DataError::io(path))?);
    let mut bytes = Vec::new();
    let mut offset = 0;
    for line in 1.. {
        bytes.clear();
        let limit = DOCUMENT_LIMIT as u64;
        let read = reader.by_ref().take(limit + 1).read_until(b'\n', &mut bytes).map_err(DataError::io(path))? as u64;
        if read == 0 {
            break;
        }
        let wrong = |message: String| DataError::Line { path: path.to_owned(), line, message };
        if read > limit {
            return Err(wrong(format!("longer than {}", document_limit())));
        }
        let text = std::str::from_utf8(&bytes).map_err(|error| DataError::NotUtf8 {
            path: path.to_owned(),
            offset: offset + error.valid_up_to() as u64,
        })?;
        offset += read;
        // Some editors write a byte order mark in front of UTF-8.
        let text = if line == 1 { text.trim_start_matches('\u{feff}') } else { text }.trim();
        if text.is_empty() {
            continue;
        }
        let object = match serde_json::from_str::<Value>(text) {
            Ok(Value::Object(object)) => object,
            Ok(Value::Array(_)) if line == 1 => return Err(wrong(ONE_ARRAY.into())),
            Ok(other) => return Err(wrong(format!("{}, not a JSON object", json_type(&other)))),
            Err(_) if line == 1 && text.starts_with('[') => return Err(wrong(ONE_ARRAY.into())),
            Err(error) => {
                let message = format!("not JSON: {} at column {}", without_position(&error), error.column());
                return Err(wrong(message));
            }
        };
        if !sink(line, object)? {
            break;
        }
    }
    Ok(())
}

/// The message of `error` without its position, whose line is that of the text that was parsed.
pub(super) fn without_position(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.split_once(" at line ").map_or(message.clone(), |(message, _)| message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(content: &[u8]) -> Result<Vec<String>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        std::fs::write(&path, content).unwrap();
        let mut texts = Vec::new();
        read(&path, &TextSelector::new(None, None).unwrap(), &mut |piece| {
            assert!(piece.starts_document);
            texts.push(piece.text);
            Ok(())
        })
        .map_err(|error| error.to_string().rsplit_once("a.jsonl").unwrap().1.to_owned())?;
        Ok(texts)
    }

    #[test]
    fn lines_are_documents() {
        let content = b"\xef\xbb\xbf{\"text\": \"a\\nb\", \"id\": 1}\r\n\n{\"text\": \"\"}\n{\"text\": \"\\u00e9\"}";
        assert_eq!(texts(content).unwrap(), ["a\nb", "é"]);
    }

    #[test]
    fn mistakes_are_located() {
        let error = |content: &[u8]| texts(content).unwrap_err();
        assert_eq!(error(b"{\"text\": \"a\"}\n{\"text\": a}"), ", line 2: not JSON: expected value at column 10");
        assert_eq!(error(b"{\"body\": 1, \"id\": 2}"), ", line 1: no field `text`; the fields are `body` and `id`");
        assert_eq!(error(b"{\"text\": 3}"), ", line 1: field `text` is a number, not a string");
        assert_eq!(error(b"\n\"a\""), ", line 2: a string, not a JSON object");
        assert!(error(b"[\n{\"text\": \"a\"}]").contains("one JSON array"));
        assert_eq!(
            error(b"{\"text\": \"a\"}\n{\"text\": \"\xff\"}"),
            ": not UTF-8 text: the first bad byte is at offset 24"
        );
        assert!(error(&b"[".repeat(100_000)).contains("one JSON array"));
        assert!(error(&[b"{\"a\":".repeat(100_000), vec![]].concat()).contains("recursion"));
    }
}
