//! CSV (RFC 4180): the first row names the columns, and each further row has a document. A field in quotes may contain separators, line
//! breaks and doubled quotes. Rows end with LF, CRLF or CR; blank lines are skipped.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use serde_json::{Map, Value};

use super::compressed::{BLOCK_BYTES, open_text};
use super::piece::{MAX_DOCUMENT_BYTES, describe_document_limit};
use super::record::{RecordPosition, RecordSink};
use crate::error::{DataError, Result};
use runner_spec::experiment::ColumnSeparator;
use runner_spec::format::counted;
use runner_template::unknown_field;

const MAX_COLUMNS: usize = 1 << 16;

/// Hands the columns `names` of each row of the file `path` to `sink` until it returns false.
///
/// # Errors
/// If it lacks a header or a column, a row has a different number of fields from the header, a quote is not closed, a field is not UTF-8
/// text, or `sink` fails.
pub(super) fn for_each_record(
    path: &Path,
    separator: ColumnSeparator,
    names: &BTreeSet<&str>,
    sink: &mut RecordSink<'_>,
) -> Result<()> {
    let (file, _) = open_text(path)?;
    let parser = ReaderBuilder::new().delimiter(separator.byte()).build();
    let (bytes, ends) = (vec![0; BLOCK_BYTES], vec![0; 64]);
    let mut row = RowReader { path, file, parser, bytes, ends, fields: 0, line: 1, next_line: 1 };
    if !row.read()? {
        return Err(DataError::file(path, "no header: the first row must name the columns"));
    }
    let header = (0..row.fields).map(|column| row.text(column, "a name of the header")).collect::<Result<Vec<_>>>()?;
    let mut columns = Vec::new();
    for &name in names {
        let mut found = (0..header.len()).filter(|&column| header[column] == name);
        match (found.next(), found.next()) {
            (Some(column), None) => columns.push((name, column, format!("column `{name}`"))),
            (Some(_), Some(_)) => return Err(row.error(format!("two columns have the name `{name}`"))),
            (None, _) => return Err(row.error(unknown_field("column", name, &header))),
        }
    }
    while row.read()? {
        if row.fields != header.len() {
            let (expected, found) = (counted(header.len() as u64, "field"), row.fields);
            return Err(row.error(format!("expected {expected}, as in the header, found {found}")));
        }
        let mut record = Map::new();
        for (name, column, what) in &columns {
            record.insert((*name).to_owned(), Value::String(row.text(*column, what)?));
        }
        if !sink(RecordPosition::Line(row.line), record)? {
            break;
        }
    }
    Ok(())
}

/// Reads one row at a time.
struct RowReader<'a> {
    path: &'a Path,
    file: BufReader<File>,
    parser: Reader,
    /// The fields of the row without their quotes, one after the other, and more bytes than they need.
    bytes: Vec<u8>,
    /// The end of each field in `bytes`, and more numbers than there are fields.
    ends: Vec<usize>,
    fields: usize,
    /// The line in which the row begins, and the line of the next byte, from 1.
    line: u64,
    next_line: u64,
}

impl RowReader<'_> {
    /// Returns false at the end of the file.
    fn read(&mut self) -> Result<bool> {
        if !self.skip_line_breaks()? {
            return Ok(false);
        }
        (self.line, self.fields) = (self.next_line, 0);
        let mut length = 0;
        loop {
            let block = self.file.fill_buf().map_err(DataError::io(self.path))?;
            let is_end = block.is_empty();
            // A line break ends the last row, unless it is in quotes.
            let input = if is_end { b"\n" } else { block };
            let (output, ends) = (&mut self.bytes[length..], &mut self.ends[self.fields..]);
            let (result, read, written, ended) = self.parser.read_record(input, output, ends);
            self.next_line += input[..read].iter().map(|&byte| u64::from(byte == b'\n')).sum::<u64>();
            if !is_end {
                self.file.consume(read);
            }
            length += written;
            self.fields += ended;
            match result {
                ReadRecordResult::Record => return Ok(true),
                ReadRecordResult::InputEmpty if is_end => {
                    return Err(self.error("a quote is not closed: a field that begins with `\"` must end with `\"`"));
                }
                ReadRecordResult::InputEmpty | ReadRecordResult::End => {}
                ReadRecordResult::OutputFull if length >= MAX_DOCUMENT_BYTES => {
                    let limit = describe_document_limit();
                    return Err(self.error(format!("longer than {limit}; look for a quote that is not closed")));
                }
                ReadRecordResult::OutputFull => self.bytes.resize(2 * self.bytes.len(), 0),
                ReadRecordResult::OutputEndsFull if self.fields >= MAX_COLUMNS => {
                    return Err(self.error(format!("more than {MAX_COLUMNS} fields")));
                }
                ReadRecordResult::OutputEndsFull => self.ends.resize(2 * self.ends.len(), 0),
            }
        }
    }

    /// Moves to the first byte of the next row; false if there is none.
    fn skip_line_breaks(&mut self) -> Result<bool> {
        loop {
            let block = self.file.fill_buf().map_err(DataError::io(self.path))?;
            let breaks = block.iter().take_while(|&&byte| matches!(byte, b'\r' | b'\n'));
            let (count, lines) =
                breaks.fold((0, 0), |(count, lines), &byte| (count + 1, lines + u64::from(byte == b'\n')));
            let (is_end, is_row) = (block.is_empty(), count < block.len());
            self.next_line += lines;
            self.file.consume(count);
            if is_end || is_row {
                return Ok(is_row);
            }
        }
    }

    /// The text of the field in `column`, which messages call `what`.
    fn text(&self, column: usize, what: &str) -> Result<String> {
        let start = if column == 0 { 0 } else { self.ends[column - 1] };
        std::str::from_utf8(&self.bytes[start..self.ends[column]]).map(str::to_owned).map_err(|error| {
            // Line breaks that end rows are not in `bytes`.
            let before = &self.bytes[..start + error.valid_up_to()];
            let line = self.line + before.iter().map(|&byte| u64::from(byte == b'\n')).sum::<u64>();
            RecordPosition::Line(line).error(self.path, format!("{what} is not UTF-8 text"))
        })
    }

    fn error(&self, message: impl std::fmt::Display) -> DataError {
        RecordPosition::Line(self.line).error(self.path, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows_with(separator: ColumnSeparator, names: &[&str], content: &[u8]) -> Result<Vec<Vec<String>>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.csv");
        std::fs::write(&path, content).unwrap();
        let mut rows = Vec::new();
        for_each_record(&path, separator, &names.iter().copied().collect(), &mut |_, record| {
            rows.push(names.iter().map(|name| record[*name].as_str().unwrap().to_owned()).collect());
            Ok(true)
        })
        .map_err(|error| error.to_string().replace(&format!("{}/", dir.path().display()), ""))?;
        Ok(rows)
    }

    fn rows(names: &[&str], content: impl AsRef<[u8]>) -> Result<Vec<Vec<String>>, String> {
        rows_with(ColumnSeparator::Comma, names, content.as_ref())
    }

    #[test]
    fn fields_may_contain_separators_quotes_and_line_breaks() {
        let expected = [["a, b", "1"], ["say \"hi\"\r\n\nbye\n", ""], [" c ", "2"]];
        for end in ["\n", "\r\n", "\r"] {
            for (start, last) in [("", ""), ("\u{feff}", end), (end, &end.repeat(3))] {
                let lines = ["text,id", "\"a, b\",1", "", "\"say \"\"hi\"\"\r\n\nbye\n\",", " c ,\"2\""];
                let content = format!("{start}{}{last}", lines.join(end));
                assert_eq!(rows(&["text", "id"], &content).unwrap(), expected, "{content:?}");
                assert_eq!(rows(&["id"], &content).unwrap(), [["1"], [""], ["2"]]);
            }
        }
        // A quote inside an unquoted field is a character.
        assert_eq!(rows(&["text"], "text\n5\" pipe\n").unwrap(), [["5\" pipe"]]);
        assert_eq!(rows(&["text"], "text,id\n").unwrap().len(), 0);
        let semicolons = b"text;id\n\"a;b\";\"c,\td|\"\n";
        assert_eq!(rows_with(ColumnSeparator::Semicolon, &["id", "text"], semicolons).unwrap(), [["c,\td|", "a;b"]]);
        assert_eq!(rows_with(ColumnSeparator::Pipe, &["id"], b"text|id\na,;\t|b\n").unwrap(), [["b"]]);
    }

    #[test]
    fn rows_may_be_longer_than_blocks_and_wider_than_the_first_guess() {
        let long = "0123456789\n".repeat(BLOCK_BYTES / 5);
        let content = format!("id,text\n1,\"{long}\"\n2,\"{long}x\"\n3,last\n");
        let found = rows(&["text"], &content).unwrap();
        assert_eq!(found, [[long.clone()], [long + "x"], ["last".to_owned()]]);
        let numbers: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        assert_eq!(rows(&["999"], format!("{0}\n{0}\n", numbers.join(","))).unwrap(), [["999"]]);
    }

    #[test]
    fn mistakes_name_the_line() {
        let long = "\n".repeat(3 * BLOCK_BYTES);
        let cases: [(&str, &[u8]); 15] = [
            ("an empty file", b""),
            ("blank lines only", b"\xef\xbb\xbf\r\n\n"),
            ("another column", b"id,texts\n1,a\n"),
            ("no header", b"1,a\n2,b\n"),
            ("a column that is there twice", b"text,id,text\na,1,b\n"),
            ("a missing field", b"id,text\r\n1,a\r\n\r\n2\r\n"),
            ("an additional field", b"id,text\n1,\"a\nb\"\n2,c,d\n"),
            ("the wrong separator", b"id;text\n1;a\n"),
            ("a quote that is not closed", b"id,text\n1,\"a\n2,b\n"),
            ("a quote that is not closed at the end", b"id,text\n1,a\n2,\""),
            ("a quote that is not closed in the header", b"id,\"text\n1,a\n"),
            ("bytes that are not UTF-8", b"id,text\n1,\"a\nb\n\xffc\"\n"),
            ("a cut character", b"text,id\n\xe6\x97,\xa5\n"),
            ("a header that is not UTF-8", b"text,\xff\na,b\n"),
            ("a compressed file", b"\x1f\x8b\x08\0text\n"),
        ];
        let line_breaks = format!("text\n\"{long}\"\na,b\n");
        let wide = ",".repeat(MAX_COLUMNS + 5);
        let large = [("a row after many lines", line_breaks.as_bytes()), ("too many columns", wide.as_bytes())];
        let report = cases.into_iter().chain(large).map(|(case, content)| {
            let error = rows(&["text"], content).unwrap_err();
            format!("{case}: {error}")
        });
        let report = report.collect::<Vec<_>>().join("\n");
        insta::assert_snapshot!(report);
    }

    /// Bytes in a column that is not read do not matter, as in other formats of columns.
    #[test]
    fn only_the_named_columns_must_be_text() {
        assert_eq!(rows(&["text"], b"id,text\n\xff,a\n").unwrap(), [["a"]]);
    }

    /// Whatever byte is changed or cut off, reading ends with rows or an error.
    #[test]
    fn corrupt_files_end() {
        let content = "id,text\r\n1,\"a \"\"quoted\"\" word\"\r\n2,\"two\r\nlines\"\r\n3,日本\n".as_bytes();
        let (mut read, mut refused) = (0, 0);
        for at in 0..content.len() {
            for byte in [b'"', b',', b'\n', b'\r', 0, 0xff] {
                let mut changed = content.to_vec();
                changed[at] = byte;
                match rows(&["text"], &changed) {
                    Ok(_) => read += 1,
                    Err(error) => {
                        assert!(error.starts_with("a.csv, line ") || error.starts_with("a.csv: "), "{error}");
                        refused += 1;
                    }
                }
            }
            let _ = rows(&["text"], &content[..at]);
        }
        assert!(read > 100 && refused > 50, "{read} {refused}");
    }
}
