//! Files of JSON objects, each with a document: one object a line (JSON Lines), or the items of one array. Neither is ever held whole.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::Path;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize as _, Deserializer};
use serde_json::{Map, Value};

use super::piece::{DOCUMENT_LIMIT, document_limit};
use crate::error::DataError;

const BLOCK: usize = 256 << 10;
/// Some editors write a byte order mark in front of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// The mistake of a file that is not JSON Lines, but an array.
const ONE_ARRAY: &str = "the file is one JSON array (`json`); JSON lines have one object a line";

/// The arrangement of objects in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JsonFormat {
    /// One object a line.
    Lines,
    /// One array of objects.
    Array,
}

impl JsonFormat {
    /// The key of such a source in the experiment.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lines => "jsonl",
            Self::Array => "json",
        }
    }
}

/// The position of an object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordPosition {
    /// From 1.
    pub(crate) line: u64,
    /// The index in the array, from 0, and the offset in bytes; `None` for an object on a line of its own.
    item: Option<(u64, u64)>,
}

impl RecordPosition {
    pub(crate) fn error(self, path: &Path, message: impl std::fmt::Display) -> DataError {
        let message = match self.item {
            Some((index, offset)) => format!("item {index} of the array (at byte {offset}): {message}"),
            None => message.to_string(),
        };
        DataError::Line { path: path.to_owned(), line: self.line, message }
    }

    fn object(self, path: &Path, value: Value) -> Result<Map<String, Value>, DataError> {
        match value {
            Value::Object(object) => Ok(object),
            other => Err(self.error(path, format!("{}, not a JSON object", json_type(&other)))),
        }
    }
}

/// Takes objects in order until it returns false.
pub(crate) type RecordSink<'a> = dyn FnMut(RecordPosition, Map<String, Value>) -> Result<bool, DataError> + 'a;

/// Hands each object of the file `path` to `sink` until it returns false.
///
/// # Errors
/// If the file does not have this format, as far as it is read, or `sink` fails.
pub(crate) fn for_each_record(path: &Path, format: JsonFormat, sink: &mut RecordSink<'_>) -> Result<(), DataError> {
    let mut file = BufReader::with_capacity(BLOCK, File::open(path).map_err(DataError::io(path))?);
    let marked = file.fill_buf().map_err(DataError::io(path))?.starts_with(BYTE_ORDER_MARK);
    let offset = if marked { BYTE_ORDER_MARK.len() } else { 0 };
    file.consume(offset);
    match format {
        JsonFormat::Lines => for_each_line(path, file, offset as u64, sink),
        JsonFormat::Array => for_each_item(path, file, offset as u64, sink),
    }
}

/// Blank lines are skipped.
fn for_each_line(
    path: &Path,
    mut file: BufReader<File>,
    mut offset: u64,
    sink: &mut RecordSink<'_>,
) -> Result<(), DataError> {
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        let limit = DOCUMENT_LIMIT as u64;
        let read = file.by_ref().take(limit + 1).read_until(b'\n', &mut bytes).map_err(DataError::io(path))? as u64;
        if read == 0 {
            break;
        }
        let position = RecordPosition { line, item: None };
        if read > limit {
            return Err(position.error(path, format!("longer than {}", document_limit())));
        }
        let text = std::str::from_utf8(&bytes).map_err(|error| DataError::NotUtf8 {
            path: path.to_owned(),
            offset: offset + error.valid_up_to() as u64,
        })?;
        offset += read;
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        if line == 1 && text.starts_with('[') {
            return Err(position.error(path, ONE_ARRAY));
        }
        let value = serde_json::from_str(text).map_err(|error| {
            position.error(path, format!("not JSON: {} at column {}", without_position(&error), error.column()))
        })?;
        if !sink(position, position.object(path, value)?)? {
            break;
        }
    }
    Ok(())
}

fn for_each_item(path: &Path, file: BufReader<File>, offset: u64, sink: &mut RecordSink<'_>) -> Result<(), DataError> {
    let progress = Cell::new(ArrayProgress { offset, line: 1, item: None, items: 0 });
    let mut stopped = None;
    let mut json = serde_json::Deserializer::from_reader(CountingReader { file, progress: &progress });
    let items = ArrayVisitor { path, progress: &progress, sink, stopped: &mut stopped };
    let read = json.deserialize_any(items).and_then(|()| json.end());
    if let Some(outcome) = stopped {
        return outcome;
    }
    read.map_err(|error| {
        if let Some(kind) = error.io_error_kind() {
            let ArrayProgress { line, item, .. } = progress.get();
            let message = without_position(&error);
            return match kind {
                io::ErrorKind::InvalidData => RecordPosition { line, item }.error(path, message),
                _ => DataError::io(path)(io::Error::new(kind, message)),
            };
        }
        let place = RecordPosition { line: error.line().max(1) as u64, item: progress.get().item };
        place.error(path, format!("{} at column {}", without_position(&error), error.column()))
    })
}

/// The progress of reading an array.
#[derive(Debug, Clone, Copy)]
struct ArrayProgress {
    /// The position of the next byte.
    offset: u64,
    line: u64,
    /// The index and the offset of the item that is being read.
    item: Option<(u64, u64)>,
    /// Items that were read.
    items: u64,
}

/// Counts the bytes that are read. `serde_json` reads byte by byte, at most one ahead of what it parses.
struct CountingReader<'a> {
    file: BufReader<File>,
    progress: &'a Cell<ArrayProgress>,
}

impl Read for CountingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        let mut progress = self.progress.get();
        progress.offset += read as u64;
        progress.line += buffer[..read].iter().map(|&byte| u64::from(byte == b'\n')).sum::<u64>();
        self.progress.set(progress);
        let too_long = progress.item.is_some_and(|(_, start)| progress.offset - start > DOCUMENT_LIMIT as u64);
        if too_long {
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("longer than {}", document_limit())))
        } else {
            Ok(read)
        }
    }
}

struct ArrayVisitor<'a, 's> {
    path: &'a Path,
    progress: &'a Cell<ArrayProgress>,
    sink: &'a mut RecordSink<'s>,
    /// Why reading stopped before the end of the array.
    stopped: &'a mut Option<Result<(), DataError>>,
}

impl<'de> Visitor<'de> for ArrayVisitor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON array of objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<(), A::Error> {
        Err(A::Error::custom(
            "an object, not an array of objects; if it has one object a line, it is JSON lines (`jsonl`)",
        ))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some((position, value)) = items.next_element_seed(ItemSeed(self.progress))? {
            match position.object(self.path, value).and_then(|object| (self.sink)(position, object)) {
                Ok(true) => {}
                outcome => {
                    *self.stopped = Some(outcome.map(|_| ()));
                    return Err(A::Error::custom("stopped"));
                }
            }
        }
        Ok(())
    }
}

/// Reads an item and its position.
struct ItemSeed<'a>(&'a Cell<ArrayProgress>);

impl<'de> DeserializeSeed<'de> for ItemSeed<'_> {
    type Value = (RecordPosition, Value);

    fn deserialize<D: Deserializer<'de>>(self, item: D) -> Result<Self::Value, D::Error> {
        let ArrayProgress { offset, line, items, .. } = self.0.get();
        // The first byte of the item has been read.
        let position = RecordPosition { line, item: Some((items, offset - 1)) };
        self.0.set(ArrayProgress { item: position.item, ..self.0.get() });
        let value = Value::deserialize(item)?;
        self.0.set(ArrayProgress { item: None, items: items + 1, ..self.0.get() });
        Ok((position, value))
    }
}

/// The message of `error` without its position.
fn without_position(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.split_once(" at line ").map_or(message.clone(), |(message, _)| message.to_owned())
}

/// The JSON type of `value` with its article, for a message.
pub(crate) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(format: JsonFormat, content: &[u8]) -> Result<Vec<String>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        std::fs::write(&path, content).unwrap();
        let mut texts = Vec::new();
        for_each_record(&path, format, &mut |_, object| {
            texts.push(object["text"].as_str().unwrap().to_owned());
            Ok(true)
        })
        .map_err(|error| error.to_string().rsplit_once("a.json").unwrap().1.to_owned())?;
        Ok(texts)
    }

    #[test]
    fn lines_are_objects() {
        let content = b"\xef\xbb\xbf{\"text\": \"a\\nb\", \"id\": 1}\r\n\n{\"text\": \"\"}\n{\"text\": \"\\u00e9\"}";
        assert_eq!(texts(JsonFormat::Lines, content).unwrap(), ["a\nb", "", "é"]);
    }

    #[test]
    fn mistakes_in_lines_are_located() {
        let error = |content: &[u8]| texts(JsonFormat::Lines, content).unwrap_err();
        assert_eq!(error(b"{\"text\": \"a\"}\n{\"text\": a}"), ", line 2: not JSON: expected value at column 10");
        assert_eq!(error(b"\n\"a\""), ", line 2: a string, not a JSON object");
        assert!(error(b"[\n{\"text\": \"a\"}]").contains("one JSON array"));
        assert_eq!(
            error(b"{\"text\": \"a\"}\n{\"text\": \"\xff\"}"),
            ": not UTF-8 text: the first bad byte is at offset 24"
        );
        assert!(error(&b"[".repeat(100_000)).contains("one JSON array"));
        assert!(error(&[b"{\"a\":".repeat(100_000), vec![]].concat()).contains("recursion"));
    }

    #[test]
    fn items_are_objects() {
        let content = b"\xef\xbb\xbf [\r\n{\"text\": \"a\\\"]},\\\\\"}, {\"text\": \"\"},{\"x\": [{}, \"]\"], \"text\": \"\\u00e9\"}\n] \n";
        assert_eq!(texts(JsonFormat::Array, content).unwrap(), ["a\"]},\\", "", "é"]);
        assert_eq!(texts(JsonFormat::Array, b"[]").unwrap(), [""; 0]);
    }

    #[test]
    fn mistakes_in_items_are_located() {
        let error = |content: &str| texts(JsonFormat::Array, content.as_bytes()).unwrap_err();
        assert_eq!(
            error("[{\"text\": \"a\"},\n {\"text\": a}]"),
            ", line 2: item 1 of the array (at byte 17): expected value at column 11"
        );
        assert!(
            error("[3, {\"text\": \"a\"}]").contains("item 0 of the array (at byte 1): a number, not a JSON object")
        );
        assert!(error("{\"text\": \"a\"}\n{}").contains("it is JSON lines (`jsonl`)"));
        assert_eq!(error("[{\"text\": \"a\"}\n{}]"), ", line 2: expected `,` or `]` at column 1");
        assert!(error("[{\"text\": \"a\"},]").contains("trailing comma"));
        assert!(error("[{\"text\": \"a\"}] x").contains("trailing characters at column 17"));
        assert!(error("[{\"text\": \"a\"}").contains("EOF while parsing a list"));
        assert!(error("[{\"text\": \"a").contains("item 0 of the array (at byte 1): EOF while parsing a string"));
        assert!(error(" \n").contains("line 2: EOF"));
        assert!(error("3").contains("expected a JSON array of objects"));
        assert!(error(&"[".repeat(1_000_000)).contains("recursion"));
        assert!(texts(JsonFormat::Array, b"[{\"text\": \"\xff\"}]").unwrap_err().contains("invalid unicode"));
    }

    #[test]
    fn every_cut_is_an_error() {
        let whole = b"[{\"text\": \"a\\\\\"}, {\"text\": \"b\", \"x\": [1, {\"y\": null}]}]";
        assert_eq!(texts(JsonFormat::Array, whole).unwrap().len(), 2);
        for end in 0..whole.len() {
            assert!(texts(JsonFormat::Array, &whole[..end]).is_err(), "cut at {end}");
        }
    }
}
