//! Records of files, as readers hand them on.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::DataError;

/// The position of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordPosition {
    /// The line, from 1; or the row, from 0.
    pub(crate) line: u64,
    unit: Unit,
}

#[derive(Debug, Clone, Copy)]
enum Unit {
    Line,
    /// An item of an array, with its index, from 0, and its offset in bytes. It may begin anywhere in the line.
    Item(u64, u64),
    /// A row of a file without lines.
    Row,
}

impl RecordPosition {
    pub(super) fn line(line: u64) -> Self {
        Self { line, unit: Unit::Line }
    }

    pub(super) fn item(line: u64, index: u64, offset: u64) -> Self {
        Self { line, unit: Unit::Item(index, offset) }
    }

    pub(super) fn row(row: u64) -> Self {
        Self { line: row, unit: Unit::Row }
    }

    pub(crate) fn error(self, path: &Path, message: impl std::fmt::Display) -> DataError {
        let line = self.line;
        let message = match self.unit {
            Unit::Line => message.to_string(),
            Unit::Item(index, offset) => format!("item {index} of the array (at byte {offset}): {message}"),
            Unit::Row => return DataError::file(path, format!("row {line}: {message}")),
        };
        DataError::Line { path: path.to_owned(), line, message }
    }
}

/// Takes records in order until it returns false.
pub(crate) type RecordSink<'a> = dyn FnMut(RecordPosition, Map<String, Value>) -> Result<bool, DataError> + 'a;
