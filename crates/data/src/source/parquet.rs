//! Parquet: each row is a record. Only the columns that are needed are read, a few rows at a time.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use bytes::Bytes;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, FileReader as _, Length, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::Type as SchemaType;
use serde_json::{Map, Value};

use super::compressed::compression_advice;
use super::record::{RecordPosition, RecordSink};
use crate::error::{DataError, Result};
use runner_files::open_regular;
use runner_spec::diagnostic::short;
use runner_spec::panics::catch_panic;
use runner_template::unknown_field;
use runner_yaml::source::read_limited;

/// Rows read at a time, so that a batch of long documents takes a few megabytes.
const ROWS_PER_READ: usize = 64;

/// Hands the columns `names` of each row of the file `path` to `sink` until it returns false. A column holds texts, whole numbers, lists, or
/// groups of them.
///
/// # Errors
/// If it is not a parquet file, lacks a column, has a value of a different type, or `sink` fails.
pub(super) fn for_each_record(path: &Path, names: &BTreeSet<&str>, sink: &mut RecordSink<'_>) -> Result<()> {
    let reader = open(path)?;
    let root = reader.metadata().file_metadata().schema_descr().root_schema_ptr();
    let fields = root.get_fields();
    let mut wanted = Vec::new();
    for name in names {
        let field = fields.iter().find(|field| field.name() == *name);
        let there = || fields.iter().map(|field| field.name());
        wanted.push(field.ok_or_else(|| DataError::file(path, unknown_field("column", name, there())))?.clone());
    }
    check_compression(path, &reader, names)?;
    let projection = guarded(path, || SchemaType::group_type_builder(root.name()).with_fields(wanted).build())?;
    let rows = guarded(path, || reader.get_row_iter(Some(projection)))?;
    let mut rows = rows.with_batch_size(ROWS_PER_READ);
    for number in 0.. {
        let Some(row) = guarded(path, || rows.next().transpose())? else { break };
        let position = RecordPosition::Row(number);
        let mut record = Map::new();
        for (name, field) in row.get_column_iter() {
            let value = value_of(field).ok_or_else(|| {
                let message = "neither text, a whole number, nor a list or group of them";
                position.error(path, format!("column `{name}` holds {message}"))
            })?;
            record.insert(name.clone(), value);
        }
        if !sink(position, record)? {
            break;
        }
    }
    Ok(())
}

/// A value of a row as JSON; `None` for types that no reader of rows asks for, and for bytes that are not text.
fn value_of(field: &Field) -> Option<Value> {
    Some(match field {
        Field::Null => Value::Null,
        Field::Str(text) => Value::String(text.clone()),
        Field::Bytes(bytes) => Value::String(str::from_utf8(bytes.data()).ok()?.to_owned()),
        Field::Byte(number) => (*number).into(),
        Field::Short(number) => (*number).into(),
        Field::Int(number) => (*number).into(),
        Field::Long(number) => (*number).into(),
        Field::Group(group) => {
            let fields = group.get_column_iter().map(|(name, field)| Some((name.clone(), value_of(field)?)));
            Value::Object(fields.collect::<Option<_>>()?)
        }
        Field::ListInternal(list) => Value::Array(list.elements().iter().map(value_of).collect::<Option<_>>()?),
        _ => return None,
    })
}

/// True if the file `path` begins as parquet files do.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn is_parquet(path: &Path) -> Result<bool> {
    let start = open_regular(path).and_then(|file| read_limited(file, 4)).map_err(DataError::io(path))?;
    Ok(start.starts_with(b"PAR1"))
}

/// # Errors
/// If a column in `names` is compressed in a way that is not read.
fn check_compression(path: &Path, reader: &SerializedFileReader<BoundedFile>, names: &BTreeSet<&str>) -> Result<()> {
    let columns = reader.metadata().row_groups().iter().flat_map(RowGroupMetaData::columns);
    let is_wanted = |parts: &[String]| parts.first().is_some_and(|name| names.contains(name.as_str()));
    let mut codecs =
        columns.filter(|column| is_wanted(column.column_path().parts())).map(ColumnChunkMetaData::compression);
    let is_read =
        |codec: &Compression| matches!(codec, Compression::UNCOMPRESSED | Compression::SNAPPY | Compression::ZSTD(_));
    codecs.find(|codec| !is_read(codec)).map_or(Ok(()), |codec| {
        Err(DataError::file(path, format!("compressed with {codec}; write it uncompressed, with snappy or with zstd")))
    })
}

/// Runs `read`, which uses the parquet reader. The reader does not check everything in a file, so a panic means a corrupt file, too; the
/// reader is not used after it.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T> {
    match catch_panic(read) {
        Ok(result) => result.map_err(|error| corrupt(path, &error.to_string())),
        Err(_) => Err(corrupt(path, "its pages are invalid")),
    }
}

fn corrupt(path: &Path, message: &str) -> DataError {
    if let Some(advice) = compression_advice(path) {
        return DataError::file(path, advice);
    }
    DataError::file(path, format!("not a parquet file, or a corrupt one: {}", short(message)))
}

fn open(path: &Path) -> Result<SerializedFileReader<BoundedFile>> {
    let file = open_regular(path).map_err(DataError::io(path))?;
    guarded(path, || SerializedFileReader::new(BoundedFile(file)))
}

/// A file whose end is an error. The parquet reader skips what it does not know by the length that the file gives, and does not look
/// whether any bytes are left: behind the end of a corrupt file it would skip up to 2^31 values that are not there.
struct BoundedFile(File);

impl Length for BoundedFile {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for BoundedFile {
    type T = BoundedRead;

    fn get_read(&self, start: u64) -> Result<BoundedRead, ParquetError> {
        self.0.get_read(start).map(BoundedRead)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.0.get_bytes(start, length)
    }
}

/// See [`BoundedFile`].
struct BoundedRead(BufReader<File>);

impl Read for BoundedRead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buffer)? {
            0 if !buffer.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            count => Ok(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stories::write_rows;

    fn sample(dir: &Path) -> std::path::PathBuf {
        let path = dir.join("a.parquet");
        let texts: Vec<String> = (0..1000).map(|i| format!("document {i}")).collect();
        write_rows(&path, &texts).unwrap();
        path
    }

    fn texts(path: &Path, column: &str) -> Result<Vec<String>, String> {
        let mut texts = Vec::new();
        for_each_record(path, &[column].into(), &mut |_, record| {
            texts.push(record[column].as_str().unwrap().to_owned());
            Ok(true)
        })
        .map_err(|error| error.to_string())?;
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
        assert!(error.contains("no column `body`; the columns are `text`, `id`, "), "{error}");
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

    /// A page's header with an unknown field: a list whose length says 2^31 - 1 numbers. Reading stops where the file ends.
    #[test]
    fn a_list_that_is_longer_than_the_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = sample(dir.path());
        let mut bytes = std::fs::read(&path).unwrap();
        // The field 15, a list (9); its length in a separate number (15) and doubles (7); the length, 7 bits a byte.
        bytes[4..11].copy_from_slice(&[0xf9, 0xf7, 0xff, 0xff, 0xff, 0xff, 0x07]);
        std::fs::write(&path, &bytes).unwrap();
        assert!(texts(&path, "text").unwrap_err().contains("not a parquet file"));
    }
}
