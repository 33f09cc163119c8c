//! The columns of parquet files and the fields of JSON objects, and the one among them that holds the text.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::Result;
use crate::source::Column;
use crate::source::{JsonFormat, for_each_record};
use runner_files::strict_json::describe_type;

/// The number of objects whose fields are collected.
const MAX_OBJECTS: usize = 1000;
/// The usual name of the column that holds the text.
const TEXT: &str = "text";

/// The fields of the first objects, by name: the types that occur, and the bytes of strings.
pub(super) fn json_fields(path: &Path, format: JsonFormat) -> Result<Vec<Column>> {
    let mut fields: BTreeMap<String, (Vec<&str>, u64)> = BTreeMap::new();
    let mut objects = 0;
    for_each_record(path, format, &mut |_, object| {
        for (name, value) in object {
            let (_, kind) = describe_type(&value).rsplit_once(' ').unwrap_or(("", describe_type(&value)));
            let (kinds, bytes) = fields.entry(name).or_default();
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
            *bytes += value.as_str().map_or(0, |text| text.len() as u64);
        }
        objects += 1;
        Ok(objects < MAX_OBJECTS)
    })?;
    let column = |(name, (kinds, bytes)): (String, (Vec<&str>, u64))| Column { name, kind: kinds.join(" or "), bytes };
    Ok(fields.into_iter().map(column).collect())
}

/// The column that probably holds the text: `text`, or the column of strings with the most bytes.
pub(super) fn text_column(columns: &[Column]) -> Option<&str> {
    let strings = || columns.iter().filter(|column| column.kind == "string");
    let named = strings().find(|column| column.name == TEXT);
    named.or_else(|| strings().max_by_key(|column| column.bytes)).map(|column| column.name.as_str())
}
