//! The columns of parquet files and the fields of JSON objects, and the one among them that holds the text.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::report::Column;
use crate::error::DataError;
use crate::source::{for_each_item, for_each_line, json_type, parquet_columns};

/// The number of objects whose fields are collected.
const MAX_OBJECTS: usize = 1000;
/// The usual name of the column that holds the text.
const TEXT: &str = "text";

/// The columns of a parquet file, and its rows.
pub(super) fn parquet_file(path: &Path) -> Result<(Vec<Column>, u64), DataError> {
    let (columns, rows) = parquet_columns(path)?;
    let columns = columns.into_iter().map(|c| Column { name: c.name, kind: c.type_name, bytes: c.bytes });
    Ok((columns.collect(), rows))
}

/// The fields of the first lines.
pub(super) fn jsonl_fields(path: &Path) -> Result<Vec<Column>, DataError> {
    let mut fields = Fields::default();
    for_each_line(path, &mut |_, object| Ok(fields.add(object)))?;
    Ok(fields.columns())
}

/// The fields of the first items of an array.
pub(super) fn json_fields(path: &Path) -> Result<Vec<Column>, DataError> {
    let mut fields = Fields::default();
    for_each_item(path, &mut |_, object| Ok(fields.add(object)))?;
    Ok(fields.columns())
}

/// The fields of objects, by name: the types that occur, and the bytes of strings.
#[derive(Default)]
struct Fields {
    found: BTreeMap<String, (Vec<&'static str>, u64)>,
    objects: usize,
}

impl Fields {
    /// Adds an object. Returns whether more are wanted.
    fn add(&mut self, object: Map<String, Value>) -> bool {
        for (name, value) in object {
            let (_, kind) = json_type(&value).rsplit_once(' ').unwrap_or(("", json_type(&value)));
            let field = self.found.entry(name).or_default();
            if !field.0.contains(&kind) {
                field.0.push(kind);
            }
            field.1 += value.as_str().map_or(0, |text| text.len() as u64);
        }
        self.objects += 1;
        self.objects < MAX_OBJECTS
    }

    fn columns(self) -> Vec<Column> {
        let column = |(name, (kinds, bytes)): (String, (Vec<_>, u64))| Column { name, kind: kinds.join(" or "), bytes };
        self.found.into_iter().map(column).collect()
    }
}

/// The column that probably holds the text: `text`, or the column of strings with the most bytes.
pub(super) fn text_column(columns: &[Column]) -> Option<&str> {
    let strings = || columns.iter().filter(|column| column.kind == "string");
    let named = strings().find(|column| column.name == TEXT);
    named.or_else(|| strings().max_by_key(|column| column.bytes)).map(|column| column.name.as_str())
}
