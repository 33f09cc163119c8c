//! Records of files, as readers hand them on.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::DataError;

/// The position of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RecordPosition {
    /// A line, from 1.
    Line(u64),
    /// An item of an array, with its index, from 0. It ends in the line.
    Item { line: u64, index: u64 },
    /// A row of a file without lines, from 0.
    Row(u64),
}

impl RecordPosition {
    /// The words for the position in a file without arrays.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Line(line) | Self::Item { line, .. } => format!("line {line}"),
            Self::Row(row) => format!("row {row}"),
        }
    }

    pub(crate) fn error(self, path: &Path, message: impl std::fmt::Display) -> DataError {
        let (line, message) = match self {
            Self::Line(line) => (line, message.to_string()),
            Self::Item { line, index } => (line, format!("item {index} of the array: {message}")),
            Self::Row(row) => return DataError::file(path, format!("row {row}: {message}")),
        };
        DataError::Line { path: path.to_owned(), line, message }
    }
}

/// Takes records in order until it returns false.
pub(crate) type RecordSink<'a> = dyn FnMut(RecordPosition, Map<String, Value>) -> Result<bool, DataError> + 'a;
