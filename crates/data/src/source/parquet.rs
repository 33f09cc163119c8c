//! Parquet: each row has a document. Only the columns that the text needs are read, a few rows at a time.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use bytes::Bytes;
use parquet::basic::{Compression, ConvertedType, LogicalType, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader as _, Length, RowGroupReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor, Type as SchemaType};
use serde_json::{Map, Value};

use super::compressed::compression_advice;
use super::piece::{MAX_DOCUMENT_BYTES, describe_document_limit};
use super::record::{RecordPosition, RecordSink};
use crate::error::{DataError, Result};
use runner_files::open_regular;
use runner_spec::diagnostic::nearest;
use runner_spec::panics::catch_panic;

/// Rows read at a time, so that a batch of long documents takes a few megabytes.
const ROWS_PER_READ: usize = 64;

type Reader = ColumnReaderImpl<ByteArrayType>;

/// Hands the columns `names` of each row of the file `path`, which hold strings, to `sink` until it returns false.
///
/// # Errors
/// If it is not a parquet file, lacks a column, has a column of a different type, or `sink` fails.
pub(super) fn for_each_record(path: &Path, names: &BTreeSet<&str>, sink: &mut RecordSink<'_>) -> Result<()> {
    let reader = open(path)?;
    let schema = reader.metadata().file_metadata().schema_descr();
    let mut columns = Vec::new();
    for &name in names {
        let index = find_string_column(schema, name).map_err(|message| DataError::file(path, message))?;
        columns.push(StringColumn { path, name, index, present: schema.column(index).max_def_level() });
    }
    let mut row = 0_u64;
    for group in 0..reader.num_row_groups() {
        let group = guarded(path, || reader.get_row_group(group))?;
        let readers = columns.iter().map(|column| column.reader(&*group));
        let mut readers = readers.collect::<Result<Vec<_>, _>>()?;
        loop {
            let values = columns.iter().zip(&mut readers).map(|(column, reader)| column.read(reader));
            let values = values.collect::<Result<Vec<_>, _>>()?;
            let records = values.first().map_or(0, Vec::len);
            if values.iter().any(|values| values.len() != records) {
                return Err(corrupt(path, "its columns differ in length"));
            }
            if records == 0 {
                break;
            }
            for index in 0..records {
                let mut record = Map::new();
                for (column, values) in columns.iter().zip(&values) {
                    let value = values[index].as_ref().map(|value| column.text(row, value)).transpose()?;
                    record.insert(column.name.to_owned(), value.map_or(Value::Null, Value::String));
                }
                if !sink(RecordPosition::row(row), record)? {
                    return Ok(());
                }
                row += 1;
            }
        }
    }
    Ok(())
}

/// Takes rows in order, each with its number from 0, until it returns false.
pub(crate) type RowSink<'a> = dyn FnMut(u64, Map<String, Value>) -> Result<bool> + 'a;

/// Hands the columns `names` of each row of the file `path` to `sink` until it returns false. A column holds texts, whole numbers, lists,
/// or groups of them.
///
/// # Errors
/// If it is not a parquet file, lacks a column, has a value of a different type, or `sink` fails.
pub(crate) fn for_each_row(path: &Path, names: &[&str], sink: &mut RowSink<'_>) -> Result<()> {
    let reader = open(path)?;
    let root = reader.metadata().file_metadata().schema_descr().root_schema_ptr();
    let fields = root.get_fields();
    let mut wanted = Vec::new();
    for name in names {
        let field = fields.iter().find(|field| field.name() == *name).ok_or_else(|| {
            let there: Vec<String> = fields.iter().take(50).map(|field| format!("`{}`", field.name())).collect();
            DataError::file(path, format!("no column `{name}`; the columns are {}", there.join(", ")))
        })?;
        wanted.push(field.clone());
    }
    let projection = guarded(path, || SchemaType::group_type_builder(root.name()).with_fields(wanted).build())?;
    let mut rows = guarded(path, || reader.get_row_iter(Some(projection)))?;
    for number in 0.. {
        let Some(row) = guarded(path, || rows.next().transpose())? else { break };
        let mut record = Map::new();
        for (name, field) in row.get_column_iter() {
            let value = value_of(field).ok_or_else(|| {
                let message = "neither text, a whole number, nor a list or group of them";
                DataError::file(path, format!("row {number}: column `{name}` holds {message}"))
            })?;
            record.insert(name.clone(), value);
        }
        if !sink(number, record)? {
            break;
        }
    }
    Ok(())
}

/// A value of a row as JSON; `None` for types that no reader of rows asks for.
fn value_of(field: &Field) -> Option<Value> {
    Some(match field {
        Field::Null => Value::Null,
        Field::Str(text) => Value::String(text.clone()),
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
    let mut start = Vec::new();
    open_regular(path).and_then(|file| file.take(4).read_to_end(&mut start)).map_err(DataError::io(path))?;
    Ok(start == b"PAR1")
}

/// A column of strings.
struct StringColumn<'a> {
    path: &'a Path,
    name: &'a str,
    index: usize,
    /// The definition level of a value that is not null.
    present: i16,
}

impl StringColumn<'_> {
    fn reader(&self, group: &dyn RowGroupReader) -> Result<Reader> {
        let codec = group.metadata().column(self.index).compression();
        if !matches!(codec, Compression::UNCOMPRESSED | Compression::SNAPPY | Compression::ZSTD(_)) {
            let message = format!("compressed with {codec}; write it uncompressed, with snappy or with zstd");
            return Err(DataError::file(self.path, message));
        }
        match guarded(self.path, || group.get_column_reader(self.index))? {
            ColumnReader::ByteArrayColumnReader(reader) => Ok(reader),
            _ => Err(corrupt(self.path, "a row group gives the column a different type from the file's")),
        }
    }

    /// Reads the values of the next rows, at most [`ROWS_PER_READ`].
    fn read(&self, reader: &mut Reader) -> Result<Vec<Option<ByteArray>>> {
        let (mut values, mut levels) = (Vec::with_capacity(ROWS_PER_READ), Vec::with_capacity(ROWS_PER_READ));
        let (records, ..) =
            guarded(self.path, || reader.read_records(ROWS_PER_READ, Some(&mut levels), None, &mut values))?;
        if self.present == 0 {
            // No row can be null.
            levels = vec![0; records];
        }
        let count = levels.iter().filter(|&&level| level == self.present).count();
        if count != values.len() || levels.len() != records {
            return Err(corrupt(self.path, "it has its number of values differs from its number of rows"));
        }
        let mut values = values.into_iter();
        Ok(levels.into_iter().map(|level| if level == self.present { values.next() } else { None }).collect())
    }

    fn text(&self, row: u64, value: &ByteArray) -> Result<String> {
        let path = self.path;
        let bytes = guarded(path, || Ok(value.data()))?;
        let name = self.name;
        if bytes.len() > MAX_DOCUMENT_BYTES {
            let limit = describe_document_limit();
            return Err(DataError::file(path, format!("row {row}: column `{name}` is longer than {limit}")));
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|_| DataError::file(path, format!("row {row}: column `{name}` is not UTF-8 text")))?;
        Ok(text.to_owned())
    }
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
    DataError::file(path, format!("not a parquet file, or a corrupt one: {message}"))
}

/// The index of the leaf `column`, which must hold strings.
fn find_string_column(schema: &SchemaDescriptor, column: &str) -> Result<usize, String> {
    let columns = schema.columns();
    let Some(index) = columns.iter().position(|c| c.path().string() == column) else {
        let names: Vec<_> =
            columns.iter().take(50).map(|c| format!("`{}` ({})", c.path().string(), type_name(c))).collect();
        let near = nearest(column, columns.iter().map(|c| c.path().parts().last().map_or("", String::as_str)));
        let near = near.map_or_else(String::new, |near| format!("did you mean `{near}`? "));
        return Err(format!("no column `{column}`; {near}the columns are {}", names.join(", ")));
    };
    let found = &columns[index];
    if found.max_rep_level() > 0 {
        return Err(format!("column `{column}` is a list; a document must be one string per row"));
    }
    if found.physical_type() != Type::BYTE_ARRAY {
        let strings: Vec<_> =
            columns.iter().filter(|c| is_string(c)).map(|c| format!("`{}`", c.path().string())).collect();
        let strings = if strings.is_empty() {
            "no column holds strings".into()
        } else {
            format!("columns of strings: {}", strings.join(", "))
        };
        return Err(format!("column `{column}` is {}, not strings; {strings}", type_name(found)));
    }
    Ok(index)
}

fn is_string(column: &ColumnDescriptor) -> bool {
    column.physical_type() == Type::BYTE_ARRAY && column.max_rep_level() == 0
}

/// The type of `column`, for a person.
fn type_name(column: &ColumnDescriptor) -> String {
    let is_text = matches!(column.logical_type_ref(), Some(LogicalType::String))
        || column.converted_type() == ConvertedType::UTF8;
    if is_text { "string".into() } else { column.physical_type().to_string().to_lowercase() }
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

/// The uncompressed bytes of the columns `names` of a parquet file; `None` if it lacks one.
///
/// # Errors
/// If it is not a parquet file.
pub(super) fn column_bytes(path: &Path, names: &BTreeSet<&str>) -> Result<Option<u64>> {
    let reader = open(path)?;
    let metadata = reader.metadata();
    let columns = metadata.file_metadata().schema_descr().columns();
    let bytes = |name: &&str| {
        let index = columns.iter().position(|column| column.path().string() == *name)?;
        let chunks = metadata.row_groups().iter().filter_map(|group| group.columns().get(index));
        Some(chunks.map(|chunk| chunk.uncompressed_size().max(0) as u64).fold(0, u64::saturating_add))
    };
    Ok(names.iter().map(bytes).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stories::write_parquet;

    fn sample(dir: &Path) -> std::path::PathBuf {
        let path = dir.join("a.parquet");
        let texts: Vec<String> = (0..1000).map(|i| format!("document {i}")).collect();
        write_parquet(&path, &texts).unwrap();
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
        assert!(error.contains("no column `body`; the columns are `text` (string), `id` (string)"), "{error}");
        let error = texts(&path, "token_count").unwrap_err();
        assert!(error.contains("column `token_count` is int64, not strings; columns of strings: `text`"), "{error}");
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
