//! A file that is one JSON array of objects, each with a document. The array is never held whole: its brackets and quotes tell where an
//! item ends, and each item is parsed on its own.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde_json::{Map, Value};

use super::jsonl::without_position;
use super::piece::{DOCUMENT_LIMIT, PieceSink, TextPiece, document_limit};
use super::text_selector::{TextSelector, json_type};
use crate::error::DataError;

const BLOCK: usize = 256 << 10;
/// How deep brackets may be nested within an item; `serde_json` has a similar limit.
const MAX_DEPTH: usize = 120;

pub(super) fn read(path: &Path, text: &TextSelector, sink: &mut PieceSink<'_>) -> Result<(), DataError> {
    for_each_item(path, &mut |position, record| {
        if let Some(text) = text.extract(record).map_err(|message| position.error(path, message))? {
            sink(TextPiece::whole_document(text))?;
        }
        Ok(true)
    })
}

/// The position of an item.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ItemPosition {
    /// From 0, as JSON counts.
    item: u64,
    line: u64,
    offset: u64,
}

impl ItemPosition {
    fn error(self, path: &Path, message: impl std::fmt::Display) -> DataError {
        let Self { item, line, offset } = self;
        let message = format!("item {item} of the array (at byte {offset}): {message}");
        DataError::Line { path: path.to_owned(), line, message }
    }
}

/// What may come expected at the level of the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Array,
    /// The first item, or the end.
    FirstItem,
    Item,
    Comma,
    /// Only white space: the array has ended.
    End,
}

/// The bytes of an item that have been read so far.
#[derive(Debug, Default)]
struct PartialItem {
    bytes: Vec<u8>,
    /// The number of open brackets; 0 in an item that is neither an array nor an object.
    depth: usize,
    quoted: bool,
    escaped: bool,
}

impl PartialItem {
    /// Appends the part of `block` that belongs to the item. Returns its length, and whether the item is complete.
    fn append(&mut self, block: &[u8]) -> Result<(usize, bool), &'static str> {
        for (at, &byte) in block.iter().enumerate() {
            if self.quoted {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.quoted = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.quoted = true,
                b'{' | b'[' => {
                    self.depth += 1;
                    if self.depth > MAX_DEPTH {
                        return Err("nested too deep");
                    }
                }
                // The bracket or comma of the array itself.
                b'}' | b']' | b',' if self.depth == 0 => {
                    self.bytes.extend_from_slice(&block[..at]);
                    return Ok((at, true));
                }
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        self.bytes.extend_from_slice(&block[..=at]);
                        return Ok((at + 1, true));
                    }
                }
                _ => {}
            }
        }
        self.bytes.extend_from_slice(block);
        Ok((block.len(), false))
    }
}

/// Hands each item's position and object to `sink` until it returns false.
///
/// # Errors
/// If the file is not an array of JSON objects, as far as it is read, or `sink` fails.
pub(crate) fn for_each_item(
    path: &Path,
    sink: &mut dyn FnMut(ItemPosition, Map<String, Value>) -> Result<bool, DataError>,
) -> Result<(), DataError> {
    let mut file = File::open(path).map_err(DataError::io(path))?;
    let mut block = vec![0; BLOCK];
    let (mut expected, mut partial) = (Expected::Array, PartialItem::default());
    let mut position = ItemPosition { item: 0, line: 1, offset: 0 };
    // The position of the next byte.
    let (mut line, mut offset) = (1, 0_u64);
    let mut inside = false;
    loop {
        let read = file.read(&mut block).map_err(DataError::io(path))?;
        if read == 0 {
            break;
        }
        let mut rest = &block[..read];
        if offset == 0 {
            // Some editors write a byte order mark in front of UTF-8.
            let text = rest.strip_prefix(b"\xef\xbb\xbf").unwrap_or(rest);
            offset += (rest.len() - text.len()) as u64;
            rest = text;
        }
        while let [byte, behind @ ..] = rest {
            if inside {
                let (taken, whole) = partial.append(rest).map_err(|message| position.error(path, message))?;
                line += rest[..taken].split(|&b| b == b'\n').count() as u64 - 1;
                offset += taken as u64;
                rest = &rest[taken..];
                if partial.bytes.len() > DOCUMENT_LIMIT {
                    return Err(position.error(path, format!("longer than {}", document_limit())));
                }
                if whole {
                    let record = match parse(path, position, &partial.bytes)? {
                        Value::Object(record) => record,
                        other => return Err(position.error(path, format!("{}, not a JSON object", json_type(&other)))),
                    };
                    if !sink(position, record)? {
                        return Ok(());
                    }
                    partial.bytes.clear();
                    (inside, expected) = (false, Expected::Comma);
                    position.item += 1;
                }
                continue;
            }
            match (expected, byte) {
                (_, b' ' | b'\t' | b'\r' | b'\n') => line += u64::from(*byte == b'\n'),
                (Expected::Array, b'[') => expected = Expected::FirstItem,
                (Expected::Array, b'{') => {
                    return Err(at_line(
                        path,
                        line,
                        "an object, not an array of objects; if it has one object a line, it is JSON lines (`jsonl`)",
                    ));
                }
                (Expected::Array, _) => return Err(at_line(path, line, "not a JSON array")),
                (Expected::FirstItem | Expected::Comma, b']') => expected = Expected::End,
                (Expected::Comma, b',') => expected = Expected::Item,
                (Expected::Comma, _) => {
                    let message =
                        format!("a comma or `]` is missing at byte {offset}, behind item {}", position.item - 1);
                    return Err(at_line(path, line, message));
                }
                (Expected::FirstItem | Expected::Item, b',' | b']' | b'}') => {
                    let here = ItemPosition { line, offset, ..position };
                    return Err(here.error(path, format!("`{}` where an object should be", char::from(*byte))));
                }
                (Expected::FirstItem | Expected::Item, _) => {
                    (position.line, position.offset, inside) = (line, offset, true);
                    continue;
                }
                (Expected::End, _) => {
                    return Err(at_line(path, line, format!("something follows the array, at byte {offset}")));
                }
            }
            offset += 1;
            rest = behind;
        }
    }
    match expected {
        Expected::End => Ok(()),
        Expected::Array => Err(at_line(path, line, "empty: there is no JSON array in it")),
        _ if inside => Err(position.error(path, "the file ends within it")),
        _ => Err(at_line(path, line, format!("the file ends within the array, behind {} items", position.item))),
    }
}

fn parse(path: &Path, position: ItemPosition, bytes: &[u8]) -> Result<Value, DataError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let offset = position.offset + error.valid_up_to() as u64;
        DataError::NotUtf8 { path: path.to_owned(), offset }
    })?;
    serde_json::from_str(text).map_err(|error| {
        let (lines, column) = (error.line().max(1) as u64 - 1, error.column());
        // In the first line the column counts from the start of the item.
        let column = if lines == 0 { format!("character {column} of it") } else { format!("column {column}") };
        let message = format!("not JSON: {}, {column}", without_position(&error));
        ItemPosition { line: position.line + lines, ..position }.error(path, message)
    })
}

fn at_line(path: &Path, line: u64, message: impl Into<String>) -> DataError {
    DataError::Line { path: path.to_owned(), line, message: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(content: &[u8]) -> Result<Vec<String>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        std::fs::write(&path, content).unwrap();
        let mut texts = Vec::new();
        read(&path, &TextSelector::new(None, None).unwrap(), &mut |piece| {
            assert!(piece.starts_document);
            texts.push(piece.text);
            Ok(())
        })
        .map_err(|error| error.to_string().rsplit_once("a.json").unwrap().1.to_owned())?;
        Ok(texts)
    }

    #[test]
    fn items_are_documents() {
        let content = b"\xef\xbb\xbf [\r\n{\"text\": \"a\\\"]},\\\\\"}, {\"text\": \"\"},{\"x\": [{}, \"]\"], \"text\": \"\\u00e9\"}\n] \n";
        assert_eq!(texts(content).unwrap(), ["a\"]},\\", "é"]);
        assert_eq!(texts(b"[]").unwrap(), [""; 0]);
        // Items that straddle blocks, at every offset within one.
        let long = "b".repeat(BLOCK - 20);
        let content = format!("[{}]", vec![format!("{{\"text\": \"{long}\"}}"); 25].join(",\n"));
        assert_eq!(texts(content.as_bytes()).unwrap(), vec![long; 25]);
    }

    #[test]
    fn mistakes_are_located() {
        let error = |content: &str| texts(content.as_bytes()).unwrap_err();
        assert_eq!(
            error("[{\"text\": \"a\"},\n {\"text\": a}]"),
            ", line 2: item 1 of the array (at byte 17): not JSON: expected value, character 10 of it"
        );
        assert_eq!(
            error("[{\"text\": \"a\"},\n\n{\"body\": 1, \"texts\": 2}]"),
            ", line 3: item 1 of the array (at byte 17): no field `text`: did you mean `texts`? the fields are `body` and `texts`"
        );
        assert!(error("[{\"text\": 3}]").ends_with("field `text` is a number, not a string"));
        assert!(
            error("[3, {\"text\": \"a\"}]").contains("item 0 of the array (at byte 1): a number, not a JSON object")
        );
        assert!(error("{\"text\": \"a\"}\n{}").contains("it is JSON lines (`jsonl`)"));
        assert_eq!(error("[{\"text\": \"a\"}\n{}]"), ", line 2: a comma or `]` is missing at byte 15, behind item 0");
        assert!(error("[{\"text\": \"a\"},]").contains("item 1 of the array (at byte 15): `]` where"));
        assert!(error("[{\"text\": \"a\"}] x").contains("something follows the array, at byte 16"));
        assert!(error("[{\"text\": \"a\"}").contains("ends within the array, behind 1 items"));
        assert!(error("[{\"text\": \"a").contains("item 0 of the array (at byte 1): the file ends within it"));
        assert!(error(" \n").contains("line 2: empty"));
        assert!(error("text").contains("not a JSON array"));
        assert!(error(&"[".repeat(1_000_000)).contains("nested too deep"));
        assert!(texts(b"[{\"text\": \"\xff\"}]").unwrap_err().contains("first bad byte is at offset 11"));
    }

    #[test]
    fn every_cut_is_an_error() {
        let whole = b"[{\"text\": \"a\\\\\"}, {\"text\": \"b\", \"x\": [1, {\"y\": null}]}]";
        assert_eq!(texts(whole).unwrap().len(), 2);
        for end in 0..whole.len() {
            assert!(texts(&whole[..end]).is_err(), "cut at {end}");
        }
    }
}
