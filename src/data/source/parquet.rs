//! Parquet: one document a row, in a column of strings. Only that column is read, a few rows at a time.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use parquet::basic::{Compression, ConvertedType, LogicalType, Type};
use parquet::column::reader::ColumnReader;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};

use super::read::{Piece, Sink};
use super::{DOCUMENT_LIMIT, megabytes};
use crate::data::error::DataError;

/// Rows taken at a time: a batch of long documents stays at some megabytes.
const ROWS: usize = 64;

pub(super) fn read(path: &Path, column: &str, sink: &mut Sink<'_>) -> Result<(), DataError> {
    let file = File::open(path).map_err(DataError::io(path))?;
    let reader = guarded(path, || SerializedFileReader::new(file))?;
    let schema = reader.metadata().file_metadata().schema_descr();
    let index = find(schema, column).map_err(|message| DataError::file(path, message))?;
    let mut row = 0_u64;
    for group in 0..reader.num_row_groups() {
        let group = guarded(path, || reader.get_row_group(group))?;
        let codec = group.metadata().column(index).compression();
        if !matches!(codec, Compression::UNCOMPRESSED | Compression::SNAPPY | Compression::ZSTD(_)) {
            let message = format!("compressed with {codec}; write it uncompressed, with snappy or with zstd");
            return Err(DataError::file(path, message));
        }
        let ColumnReader::ByteArrayColumnReader(mut values) = guarded(path, || group.get_column_reader(index))? else {
            return Err(corrupt(path, "a row group has another type for the column than the file"));
        };
        let (mut buffer, mut levels) = (Vec::with_capacity(ROWS), Vec::with_capacity(ROWS));
        loop {
            buffer.clear();
            levels.clear();
            // Nulls are records without a value: no documents.
            let (records, ..) = guarded(path, || values.read_records(ROWS, Some(&mut levels), None, &mut buffer))?;
            if records == 0 {
                break;
            }
            for value in &buffer {
                let text = guarded(path, || Ok(value.data()))?;
                let text = std::str::from_utf8(text).map_err(|_| {
                    let last = row + records as u64;
                    DataError::file(path, format!("column `{column}` is not UTF-8 text between rows {row} and {last}"))
                })?;
                if text.len() > DOCUMENT_LIMIT {
                    let (last, limit) = (row + records as u64, megabytes(DOCUMENT_LIMIT as u64));
                    let message = format!("a document between rows {row} and {last} is longer than {limit}");
                    return Err(DataError::file(path, message));
                }
                if !text.is_empty() {
                    sink(Piece { text: text.to_owned(), first: true })?;
                }
            }
            row += records as u64;
        }
    }
    Ok(())
}

/// The reader checks most of what a file can get wrong, but not all of it: a panic in it means a corrupt file too. What
/// it leaves behind is dropped unseen, as the error ends the reading.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, DataError> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(result) => result.map_err(|error| corrupt(path, &error.to_string())),
        Err(_) => Err(corrupt(path, "its pages make no sense")),
    }
}

fn corrupt(path: &Path, message: &str) -> DataError {
    DataError::file(path, format!("not a parquet file, or a corrupt one: {message}"))
}

/// The index of the leaf `column`, or what is wrong with asking for it.
fn find(schema: &SchemaDescriptor, column: &str) -> Result<usize, String> {
    let columns = schema.columns();
    let Some(index) = columns.iter().position(|c| c.path().string() == column) else {
        let names: Vec<_> = columns.iter().take(50).map(|c| format!("`{}` ({})", c.path().string(), kind(c))).collect();
        return Err(format!("no column `{column}`; the columns are {}", names.join(", ")));
    };
    let found = &columns[index];
    if found.max_rep_level() > 0 {
        return Err(format!("column `{column}` is a list; a document is one string a row"));
    }
    if found.physical_type() != Type::BYTE_ARRAY {
        let strings: Vec<_> =
            columns.iter().filter(|c| is_string(c)).map(|c| format!("`{}`", c.path().string())).collect();
        let strings = if strings.is_empty() {
            "there are none of strings".into()
        } else {
            format!("of strings are {}", strings.join(", "))
        };
        return Err(format!("column `{column}` is {}, not strings; {strings}", kind(found)));
    }
    Ok(index)
}

fn is_string(column: &ColumnDescriptor) -> bool {
    column.physical_type() == Type::BYTE_ARRAY && column.max_rep_level() == 0
}

fn kind(column: &ColumnDescriptor) -> String {
    let text = matches!(column.logical_type_ref(), Some(LogicalType::String))
        || column.converted_type() == ConvertedType::UTF8;
    if text { "string".into() } else { column.physical_type().to_string().to_lowercase() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::stories::write_parquet;

    fn sample(dir: &Path) -> std::path::PathBuf {
        let path = dir.join("a.parquet");
        let texts: Vec<String> = (0..1000).map(|i| format!("document {i}")).collect();
        write_parquet(&path, &texts).unwrap();
        path
    }

    fn texts(path: &Path, column: &str) -> Result<Vec<String>, String> {
        let mut texts = Vec::new();
        let mut sink = |piece: Piece| {
            texts.push(piece.text);
            Ok(())
        };
        read(path, column, &mut sink).map_err(|error| error.to_string())?;
        Ok(texts)
    }

    #[test]
    fn rows_are_documents() {
        let dir = tempfile::tempdir().unwrap();
        let texts = texts(&sample(dir.path()), "text").unwrap();
        assert_eq!(texts.len(), 1000);
        assert_eq!(texts[999], "document 999");
    }

    #[test]
    fn a_wrong_column_names_the_right_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = sample(dir.path());
        let error = texts(&path, "body").unwrap_err();
        assert!(error.contains("no column `body`; the columns are `text` (string), `id` (string)"), "{error}");
        let error = texts(&path, "token_count").unwrap_err();
        assert!(error.contains("column `token_count` is int64, not strings; of strings are `text`"), "{error}");
    }

    /// Whatever byte is changed or cut off, reading ends with documents or an error.
    #[test]
    fn corrupt_files_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = std::fs::read(sample(dir.path())).unwrap();
        let path = dir.path().join("b.parquet");
        let mut errors = 0;
        for i in 0..200 {
            let at = i * bytes.len() / 200;
            let mut changed = bytes.clone();
            changed[at] ^= 0x55;
            std::fs::write(&path, &changed).unwrap();
            errors += usize::from(texts(&path, "text").is_err());
            std::fs::write(&path, &bytes[..at]).unwrap();
            assert!(texts(&path, "text").is_err(), "cut at {at}");
        }
        assert!(errors > 10, "{errors}");
        std::fs::write(&path, b"").unwrap();
        assert!(texts(&path, "text").unwrap_err().contains("not a parquet file"));
    }
}
