//! Pieces of documents, and the limit of what is held in memory at once.

use crate::error::Result;

/// A document longer than this is refused where it must be held whole.
pub(crate) const MAX_DOCUMENT_BYTES: usize = 256 << 20;

/// A document, or a part of one that may be tokenized on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextPiece {
    pub text: String,
    pub starts_document: bool,
}

/// Takes pieces in order; an error stops the reading.
pub(super) type PieceSink<'a> = dyn FnMut(TextPiece) -> Result<()> + 'a;

/// The document limit, for a message.
pub(crate) fn describe_document_limit() -> String {
    format!("{:.1} MB", MAX_DOCUMENT_BYTES as f64 / 1e6)
}
