//! Files of JSON objects, each with a document: one object a line (JSON Lines), or the items of one array. Neither is ever held whole.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;

use serde::Deserializer as _;
use serde::de::{self, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::compressed::open_text;
use super::piece::{MAX_DOCUMENT_BYTES, describe_document_limit};
use super::record::{RecordPosition, RecordSink};
use crate::error::{DataError, Result};
use runner_files::strict_json;
use runner_spec::experiment::RecordFormat;

/// The mistake of a file that is not JSON Lines, but an array.
const ONE_ARRAY: &str = "the file is one JSON array, so use `json`; JSON Lines have one object per line";

fn object(position: RecordPosition, path: &Path, value: Value) -> Result<Map<String, Value>> {
    match value {
        Value::Object(object) => Ok(object),
        other => Err(position.error(path, format!("{}, not a JSON object", strict_json::describe_type(&other)))),
    }
}

/// Hands each object of the file `path` to `sink` until it returns false. `format` is JSON Lines, or one array of objects. A file of an array
/// that begins with an object has one object a line.
///
/// # Errors
/// If the file does not have this format, as far as it is read, or `sink` fails.
pub(super) fn for_each_record(path: &Path, format: RecordFormat, sink: &mut RecordSink<'_>) -> Result<()> {
    let (file, offset) = open_text(path)?;
    let first = file.buffer().iter().find(|byte| !byte.is_ascii_whitespace());
    if format == RecordFormat::Jsonl || first == Some(&b'{') {
        for_each_line(path, file, format, offset as u64, sink)
    } else {
        for_each_item(path, file, sink)
    }
}

/// Blank lines are skipped.
fn for_each_line(
    path: &Path,
    mut file: BufReader<File>,
    format: RecordFormat,
    mut offset: u64,
    sink: &mut RecordSink<'_>,
) -> Result<()> {
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        let limit = MAX_DOCUMENT_BYTES as u64;
        let read = file.by_ref().take(limit + 1).read_until(b'\n', &mut bytes).map_err(DataError::io(path))? as u64;
        if read == 0 {
            break;
        }
        let position = RecordPosition::Line(line);
        if read > limit {
            return Err(position.error(path, format!("longer than {}", describe_document_limit())));
        }
        let text = std::str::from_utf8(&bytes)
            .map_err(|error| DataError::not_utf8(path, offset + error.valid_up_to() as u64))?;
        offset += read;
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        if line == 1 && text.starts_with('[') {
            return Err(position.error(path, ONE_ARRAY));
        }
        let value = strict_json::parse_record(text.as_bytes()).map_err(|error| {
            if format == RecordFormat::Json && line == 1 && error.is_eof() {
                let message =
                    "expected an array of objects, or one object on each line, found an object on several lines";
                return DataError::file(path, message);
            }
            position.error(path, format!("not JSON: {} at column {}", without_position(&error), error.column()))
        })?;
        if !sink(position, object(position, path, value)?)? {
            break;
        }
    }
    Ok(())
}

fn for_each_item(path: &Path, file: BufReader<File>, sink: &mut RecordSink<'_>) -> Result<()> {
    let progress = ReadProgress::default();
    let reader = ItemReader { file, progress: &progress };
    let mut failed = None;
    let mut deserializer = serde_json::Deserializer::from_reader(reader);
    let items = Items { path, sink, progress: &progress, failed: &mut failed };
    let parsed =
        deserializer.deserialize_seq(items).and_then(|is_whole| if is_whole { deserializer.end() } else { Ok(()) });
    match (failed, parsed) {
        (Some(error), _) => Err(error),
        (None, Ok(())) => Ok(()),
        (None, Err(error)) if error.is_io() => Err(DataError::io(path)(error.into())),
        (None, Err(error)) => {
            let message = format!("{} at column {}", without_position(&error), error.column());
            Err(RecordPosition::Line(error.line().max(1) as u64).error(path, message))
        }
    }
}

/// How far an array was read.
#[derive(Default)]
struct ReadProgress {
    /// Line breaks so far.
    breaks: Cell<u64>,
    /// Bytes since the last item.
    bytes: Cell<usize>,
}

/// Hands bytes on. An item that is too long is an error.
struct ItemReader<'a> {
    file: BufReader<File>,
    progress: &'a ReadProgress,
}

impl io::Read for ItemReader<'_> {
    /// The parser asks for single bytes, so the progress is exact.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        let breaks = buffer[..read].iter().map(|&byte| u64::from(byte == b'\n')).sum::<u64>();
        self.progress.breaks.set(self.progress.breaks.get() + breaks);
        self.progress.bytes.set(self.progress.bytes.get() + read);
        if self.progress.bytes.get() > MAX_DOCUMENT_BYTES {
            return Err(io::Error::other(format!("an item is longer than {}", describe_document_limit())));
        }
        Ok(read)
    }
}

/// Hands the items of an array to `sink`. The result is whether all of them were read.
struct Items<'a, 'b> {
    path: &'a Path,
    sink: &'a mut RecordSink<'b>,
    progress: &'a ReadProgress,
    failed: &'a mut Option<DataError>,
}

impl<'de> Visitor<'de> for Items<'_, '_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON array of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<bool, A::Error> {
        for index in 0.. {
            self.progress.bytes.set(0);
            let Some(value) = items.next_element::<Value>()? else { break };
            let position = RecordPosition::Item { line: self.progress.breaks.get() + 1, index };
            match object(position, self.path, value).and_then(|object| (self.sink)(position, object)) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => {
                    *self.failed = Some(error);
                    return Err(de::Error::custom("an item is wrong"));
                }
            }
        }
        Ok(true)
    }
}

/// The message of `error` without its position.
fn without_position(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.split_once(" at line ").map_or(message.clone(), |(message, _)| message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::compressed::BLOCK_BYTES;
    use super::*;

    fn texts(format: RecordFormat, content: &[u8]) -> Result<Vec<String>, String> {
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
        assert_eq!(texts(RecordFormat::Jsonl, content).unwrap(), ["a\nb", "", "é"]);
        let content = b"{\"score\": NaN, \"text\": \"NaN\", \"range\": [-Infinity, Infinity]}";
        assert_eq!(texts(RecordFormat::Jsonl, content).unwrap(), ["NaN"], "numbers that Python writes");
    }

    #[test]
    fn compressed_files_say_how_to_decompress_them() {
        for format in [RecordFormat::Jsonl, RecordFormat::Json] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a.json");
            std::fs::write(&path, b"\x1f\x8b\x08\x00\xff").unwrap();
            let error = for_each_record(&path, format, &mut |_, _| Ok(true)).unwrap_err().to_string();
            assert!(error.contains(": compressed with gzip; decompress it first: `gunzip -k "), "{error}");
        }
    }

    #[test]
    fn mistakes_in_lines_are_located() {
        let error = |content: &[u8]| texts(RecordFormat::Jsonl, content).unwrap_err();
        assert_eq!(error(b"{\"text\": \"a\"}\n{\"text\": a}"), ", line 2: not JSON: expected value at column 10");
        assert_eq!(error(b"\n\"a\""), ", line 2: a string, not a JSON object");
        assert!(error(b"[\n{\"text\": \"a\"}]").contains("one JSON array"));
        assert_eq!(
            error(b"{\"text\": \"a\"}\n{\"text\": \"\xff\"}"),
            ": not UTF-8 text: the first bad byte is at offset 24"
        );
        assert!(error(&b"[".repeat(100_000)).contains("one JSON array"));
        let several = texts(RecordFormat::Json, b"{\n\"text\": \"a\"}").unwrap_err();
        assert!(several.ends_with("one object on each line, found an object on several lines"), "{several}");
        assert!(error(&[b"{\"a\":".repeat(100_000), vec![]].concat()).contains("recursion"));
    }

    #[test]
    fn items_are_objects() {
        let content = b"\xef\xbb\xbf [\r\n{\"text\": \"a\\\"]},\\\\\"}, {\"text\": \"\"},{\"x\": [{}, \"]\"], \"text\": \"\\u00e9\"}\n] \n";
        assert_eq!(texts(RecordFormat::Json, content).unwrap(), ["a\"]},\\", "", "é"]);
        assert_eq!(texts(RecordFormat::Json, b"[]").unwrap(), [""; 0]);
        let lines = b"\xef\xbb\xbf\n{\"text\": \"a\"}\n{\"text\": \"b\"}\n";
        assert_eq!(texts(RecordFormat::Json, lines).unwrap(), ["a", "b"]);
    }

    #[test]
    fn mistakes_in_items_are_located() {
        let error = |content: &str| texts(RecordFormat::Json, content.as_bytes()).unwrap_err();
        assert_eq!(error("[{\"text\": \"a\"},\n {\"text\": a}]"), ", line 2: expected value at column 11");
        assert!(error("[3, {\"text\": \"a\"}]").contains("item 0 of the array: a number, not a JSON object"));
        assert_eq!(error("[{\"text\": \"a\"}\n{}]"), ", line 2: expected `,` or `]` at column 1");
        assert!(error("[{\"text\": \"a\"},]").contains("trailing comma"));
        assert!(error("[{\"text\": \"a\"}] x").contains("trailing characters at column 17"));
        assert!(error("[{\"text\": \"a\"}").contains("EOF while parsing a list"));
        assert!(error("[{\"text\": \"a").contains("EOF while parsing a string"));
        assert!(error(" \n").contains("line 2: EOF"));
        assert!(error("3").contains("a JSON array of objects"));
        assert!(error(&"[".repeat(1_000_000)).contains("recursion"));
        assert!(texts(RecordFormat::Json, b"[{\"text\": \"\xff\"}]").unwrap_err().contains("invalid unicode"));
    }

    #[test]
    fn items_are_read_across_blocks() {
        let mut expected: Vec<String> = (0..100).map(|i| "é\\n".repeat(i * 97)).collect();
        expected.push("x".repeat(3 * BLOCK_BYTES));
        let items: Vec<String> =
            expected.iter().map(|text| format!(" {}\n", serde_json::json!({"text": text}))).collect();
        let content = format!("[\n{}]", items.join(",\n"));
        assert!(texts(RecordFormat::Json, content.as_bytes()).unwrap() == expected);
        let line = content.matches('\n').count() + 1;
        let error = texts(RecordFormat::Json, format!("{content} ]").as_bytes()).unwrap_err();
        assert_eq!(error, format!(", line {line}: trailing characters at column 3"));
        let wrong = format!("{}, 3]", content.trim_end_matches(']'));
        let error = texts(RecordFormat::Json, wrong.as_bytes()).unwrap_err();
        assert_eq!(error, format!(", line {line}: item 101 of the array: a number, not a JSON object"));
    }

    #[test]
    fn every_cut_is_an_error() {
        let whole = b"[{\"text\": \"a\\\\\"}, {\"text\": \"b\", \"x\": [1, {\"y\": null}]}]";
        assert_eq!(texts(RecordFormat::Json, whole).unwrap().len(), 2);
        for end in 0..whole.len() {
            assert!(texts(RecordFormat::Json, &whole[..end]).is_err(), "cut at {end}");
        }
    }
}
