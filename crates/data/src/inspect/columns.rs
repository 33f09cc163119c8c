//! The columns of parquet files and the fields of JSON objects, and which of them holds the text.

use std::collections::BTreeMap;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use parquet::basic::{ConvertedType, LogicalType, Type};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use serde_json::{Map, Value};

use super::report::Column;
use crate::error::DataError;
use crate::source::{for_each_item, for_each_line};

/// Objects that are looked at for their fields.
const OBJECTS: usize = 1000;
/// The column that is the text, where it exists.
const TEXT: &str = "text";

/// The columns of a parquet file, and its rows.
pub(super) fn parquet(path: &Path) -> Result<(Vec<Column>, u64), DataError> {
    let file = File::open(path).map_err(DataError::io(path))?;
    let corrupt = |message: &str| DataError::file(path, format!("not a parquet file, or a corrupt one: {message}"));
    // The reader checks most of what a file can get wrong, not all.
    let opened = catch_unwind(AssertUnwindSafe(|| SerializedFileReader::new(file)));
    let reader =
        opened.map_err(|_| corrupt("its pages make no sense"))?.map_err(|error| corrupt(&error.to_string()))?;
    let metadata = reader.metadata();
    let schema = metadata.file_metadata().schema_descr();
    let columns = schema.columns().iter().enumerate().map(|(index, column)| {
        let text = matches!(column.logical_type_ref(), Some(LogicalType::String))
            || column.converted_type() == ConvertedType::UTF8;
        let kind = match (text, column.physical_type()) {
            (true, _) => "string".to_owned(),
            (false, Type::BYTE_ARRAY) => "bytes".to_owned(),
            (false, other) => other.to_string().to_lowercase(),
        };
        let kind = if column.max_rep_level() > 0 { format!("list of {kind}") } else { kind };
        let sizes = metadata.row_groups().iter().filter_map(|group| group.columns().get(index));
        let bytes = sizes.map(|chunk| chunk.uncompressed_size().max(0) as u64).fold(0, u64::saturating_add);
        Column { name: column.path().string(), kind, bytes }
    });
    Ok((columns.collect(), metadata.file_metadata().num_rows().max(0) as u64))
}

/// Bytes that `column` of a parquet file takes without compression, if there is such a column.
pub(crate) fn column_bytes(path: &Path, column: &str) -> Option<u64> {
    let (columns, _) = parquet(path).ok()?;
    columns.into_iter().find(|found| found.name == column).map(|found| found.bytes)
}

/// The fields of the first lines.
pub(super) fn jsonl(path: &Path) -> Result<Vec<Column>, DataError> {
    let mut fields = Fields::default();
    for_each_line(path, &mut |_, object| Ok(fields.take(object)))?;
    Ok(fields.columns())
}

/// The fields of the first items of an array.
pub(super) fn json(path: &Path) -> Result<Vec<Column>, DataError> {
    let mut fields = Fields::default();
    for_each_item(path, &mut |_, object| Ok(fields.take(object)))?;
    Ok(fields.columns())
}

/// What objects have: by name the types that come up, and bytes of strings.
#[derive(Default)]
struct Fields {
    found: BTreeMap<String, (Vec<&'static str>, u64)>,
    objects: usize,
}

impl Fields {
    /// Takes the next object; whether more are wanted.
    fn take(&mut self, object: Map<String, Value>) -> bool {
        for (name, value) in object {
            let kind = match value {
                Value::Null => "null",
                Value::Bool(_) => "boolean",
                Value::Number(_) => "number",
                Value::String(_) => "string",
                Value::Array(_) => "array",
                Value::Object(_) => "object",
            };
            let field = self.found.entry(name).or_default();
            if !field.0.contains(&kind) {
                field.0.push(kind);
            }
            field.1 += value.as_str().map_or(0, |text| text.len() as u64);
        }
        self.objects += 1;
        self.objects < OBJECTS
    }

    fn columns(self) -> Vec<Column> {
        let column = |(name, (kinds, bytes)): (String, (Vec<_>, u64))| Column { name, kind: kinds.join(" or "), bytes };
        self.found.into_iter().map(column).collect()
    }
}

/// The column that holds the text, probably: `text`, or the strings that take the most room.
pub(super) fn text_column(columns: &[Column]) -> Option<&str> {
    let strings = || columns.iter().filter(|column| column.kind == "string");
    let named = strings().find(|column| column.name == TEXT);
    named.or_else(|| strings().max_by_key(|column| column.bytes)).map(|column| column.name.as_str())
}
