//! A column of a file of records.

use serde::Serialize;

/// A column of a parquet file, or a field of JSON objects.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Column {
    pub name: String,
    /// The types of its values; `string` if it can hold text.
    pub kind: String,
    /// Uncompressed bytes; for a field, those of the strings in the first objects.
    pub bytes: u64,
}
