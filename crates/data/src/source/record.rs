//! Records of files, as readers hand them on.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::DataError;

/// The position of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordPosition {
    /// The line, from 1; or the row, from 0.
    line: u64,
    unit: Unit,
}

#[derive(Debug, Clone, Copy)]
enum Unit {
    Line,
    /// An item of an array, with its index, from 0. It ends in the line.
    Item(u64),
    /// A row of a file without lines.
    Row,
}

impl RecordPosition {
    pub(super) fn line(line: u64) -> Self {
        Self { line, unit: Unit::Line }
    }

    pub(super) fn item(line: u64, index: u64) -> Self {
        Self { line, unit: Unit::Item(index) }
    }

    pub(super) fn row(row: u64) -> Self {
        Self { line: row, unit: Unit::Row }
    }

    /// The words for the position in a file without arrays.
    pub(crate) fn describe(self) -> String {
        let unit = if matches!(self.unit, Unit::Row) { "row" } else { "line" };
        format!("{unit} {}", self.line)
    }

    pub(crate) fn error(self, path: &Path, message: impl std::fmt::Display) -> DataError {
        let line = self.line;
        let message = match self.unit {
            Unit::Line => message.to_string(),
            Unit::Item(index) => format!("item {index} of the array: {message}"),
            Unit::Row => return DataError::file(path, format!("row {line}: {message}")),
        };
        DataError::Line { path: path.to_owned(), line, message }
    }
}

/// Takes records in order until it returns false.
pub(crate) type RecordSink<'a> = dyn FnMut(RecordPosition, Map<String, Value>) -> Result<bool, DataError> + 'a;
