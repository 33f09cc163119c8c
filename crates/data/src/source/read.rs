//! Reading a located source as pieces of text.

use super::locate::{Documents, Located};
use super::{json, jsonl, parquet, text};
use crate::error::DataError;
use crate::tokenizer::Cut;

/// A document, or the part of one that a tokenizer may take on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub text: String,
    /// Whether a document starts here.
    pub first: bool,
}

/// Takes pieces in order; an error stops the reading.
pub(super) type Sink<'a> = dyn FnMut(Piece) -> Result<(), DataError> + 'a;

/// Hands the documents of `source` to `sink`, in order, in pieces where `cut` allows. Empty documents are left out.
/// Holds one block, line or page at a time, and a whole document only where it may not be cut.
///
/// # Errors
/// If a file is not what it should be, or `sink` fails.
pub(crate) fn read(source: &Located, cut: Cut, sink: &mut Sink<'_>) -> Result<(), DataError> {
    for file in &source.files {
        match &source.documents {
            Documents::Text => text::read(&file.path, cut, sink)?,
            Documents::Jsonl { text } => jsonl::read(&file.path, text, sink)?,
            Documents::Json { text } => json::read(&file.path, text, sink)?,
            Documents::Parquet { text } => parquet::read(&file.path, text, sink)?,
            Documents::Tokens => return Err(DataError::file(&file.path, "token shards hold no text")),
        }
    }
    Ok(())
}
