//! A file that is one JSON array of objects, each a document. The array is never held whole: an item is found by its brackets
//! and quotes, and read on its own.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde_json::{Map, Value};

use super::read::{Piece, Sink};
use super::text_of::{TextOf, kind};
use super::{DOCUMENT_LIMIT, megabytes};
use crate::error::DataError;

const BLOCK: usize = 256 << 10;
/// Brackets within brackets of one item; what reads an item goes no deeper either.
const MAX_DEPTH: usize = 120;

pub(super) fn read(path: &Path, text: &TextOf, sink: &mut Sink<'_>) -> Result<(), DataError> {
    for_each_item(path, &mut |place, record| match text.of(record).map_err(|message| place.error(path, message))? {
        Some(text) => sink(Piece { text, first: true }).map(|()| true),
        None => Ok(true),
    })
}

/// Where an item begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// From 0, as JSON counts.
    item: u64,
    line: u64,
    offset: u64,
}

impl Place {
    fn error(self, path: &Path, message: impl std::fmt::Display) -> DataError {
        let Self { item, line, offset } = self;
        let message = format!("item {item} of the array (at byte {offset}): {message}");
        DataError::Line { path: path.to_owned(), line, message }
    }
}

/// What may come next at the level of the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Array,
    /// Behind `[`.
    FirstItem,
    /// Behind a comma.
    Item,
    Comma,
    /// Behind `]`.
    End,
}

/// The bytes of one item, as far as they have been seen.
#[derive(Debug, Default)]
struct Open {
    bytes: Vec<u8>,
    /// 0 within an item that is no array or object.
    depth: usize,
    quoted: bool,
    escaped: bool,
}

impl Open {
    /// Takes the part of `block` that belongs to the item; how much that is, and whether the item is whole.
    fn take(&mut self, block: &[u8]) -> Result<(usize, bool), &'static str> {
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

/// Hands each item's place and object to `sink`, which says whether to go on.
///
/// # Errors
/// If the file is not an array of JSON objects, as far as it is read, or `sink` fails.
pub(crate) fn for_each_item(
    path: &Path,
    sink: &mut dyn FnMut(Place, Map<String, Value>) -> Result<bool, DataError>,
) -> Result<(), DataError> {
    let mut file = File::open(path).map_err(DataError::io(path))?;
    let mut block = vec![0; BLOCK];
    let (mut next, mut open) = (Next::Array, Open::default());
    let mut place = Place { item: 0, line: 1, offset: 0 };
    // Of the byte that is looked at.
    let (mut line, mut offset) = (1, 0_u64);
    let mut inside = false;
    loop {
        let read = file.read(&mut block).map_err(DataError::io(path))?;
        if read == 0 {
            break;
        }
        let mut rest = &block[..read];
        if offset == 0 {
            // A byte order mark is what some editors put in front of UTF-8.
            let text = rest.strip_prefix(b"\xef\xbb\xbf").unwrap_or(rest);
            offset += (rest.len() - text.len()) as u64;
            rest = text;
        }
        while let [byte, behind @ ..] = rest {
            if inside {
                let (taken, whole) = open.take(rest).map_err(|message| place.error(path, message))?;
                line += rest[..taken].split(|&b| b == b'\n').count() as u64 - 1;
                offset += taken as u64;
                rest = &rest[taken..];
                if open.bytes.len() > DOCUMENT_LIMIT {
                    let limit = megabytes(DOCUMENT_LIMIT as u64);
                    return Err(place.error(path, format!("longer than {limit}")));
                }
                if whole {
                    let record = match parse(path, place, &open.bytes)? {
                        Value::Object(record) => record,
                        other => return Err(place.error(path, format!("{}, not a JSON object", kind(&other)))),
                    };
                    if !sink(place, record)? {
                        return Ok(());
                    }
                    open.bytes.clear();
                    (inside, next) = (false, Next::Comma);
                    place.item += 1;
                }
                continue;
            }
            match (next, byte) {
                (_, b' ' | b'\t' | b'\r' | b'\n') => line += u64::from(*byte == b'\n'),
                (Next::Array, b'[') => next = Next::FirstItem,
                (Next::Array, b'{') => {
                    return Err(at_line(
                        path,
                        line,
                        "an object, not an array of objects; if it has one object a line, it is JSON lines (`jsonl`)",
                    ));
                }
                (Next::Array, _) => return Err(at_line(path, line, "not a JSON array")),
                (Next::FirstItem | Next::Comma, b']') => next = Next::End,
                (Next::Comma, b',') => next = Next::Item,
                (Next::Comma, _) => {
                    let message = format!("a comma or `]` is missing at byte {offset}, behind item {}", place.item - 1);
                    return Err(at_line(path, line, message));
                }
                (Next::FirstItem | Next::Item, b',' | b']' | b'}') => {
                    let here = Place { line, offset, ..place };
                    return Err(here.error(path, format!("`{}` where an object should be", char::from(*byte))));
                }
                (Next::FirstItem | Next::Item, _) => {
                    (place.line, place.offset, inside) = (line, offset, true);
                    continue;
                }
                (Next::End, _) => {
                    return Err(at_line(path, line, format!("something follows the array, at byte {offset}")));
                }
            }
            offset += 1;
            rest = behind;
        }
    }
    match next {
        Next::End => Ok(()),
        Next::Array => Err(at_line(path, line, "empty: there is no JSON array in it")),
        _ if inside => Err(place.error(path, "the file ends within it")),
        _ => Err(at_line(path, line, format!("the file ends within the array, behind {} items", place.item))),
    }
}

fn parse(path: &Path, place: Place, bytes: &[u8]) -> Result<Value, DataError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let offset = place.offset + error.valid_up_to() as u64;
        DataError::NotUtf8 { path: path.to_owned(), offset }
    })?;
    serde_json::from_str(text).map_err(|error| {
        let (within, column) = (error.line().max(1) as u64 - 1, error.column());
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default().to_owned();
        // In the first line the column is that of the item.
        let at = if within == 0 { format!("character {column} of it") } else { format!("column {column}") };
        let line = place.line + within;
        let item = place.item;
        let message = format!("item {item} of the array (at byte {}): not JSON: {message}, {at}", place.offset);
        DataError::Line { path: path.to_owned(), line, message }
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
        read(&path, &TextOf::new(None, None).unwrap(), &mut |piece| {
            assert!(piece.first);
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
