//! Reads a located source as pieces of text.

use super::locate::{DocumentFormat, LocatedSource};
use super::piece::{PieceSink, TextPiece};
use super::{json, jsonl, parquet, text};
use crate::cut_points::CutPoints;
use crate::error::DataError;

/// Hands the documents of `source` to `sink`, in order, in pieces where `cut` allows. Empty documents are left out. One block, line
/// or page is held at a time, and a whole document only where it may not be cut.
///
/// # Errors
/// If a file does not have the format that the source says, or `sink` fails.
pub(crate) fn read(source: &LocatedSource, cut: CutPoints, sink: &mut PieceSink<'_>) -> Result<(), DataError> {
    source.files.iter().try_for_each(|file| match &source.documents {
        DocumentFormat::Text => text::read(&file.path, cut, sink),
        DocumentFormat::Jsonl(text) => jsonl::read(&file.path, text, sink),
        DocumentFormat::Json(text) => json::read(&file.path, text, sink),
        DocumentFormat::Parquet(text) => parquet::read(&file.path, text, sink),
        DocumentFormat::Tokens => Err(DataError::file(&file.path, "token shards hold no text")),
    })
}

/// Bytes of text in a batch. Encoding a batch needs a few times this much memory.
const BATCH_BYTES: usize = 8 << 20;

/// Hands the pieces of [`read`] to `take` in batches of some megabytes.
///
/// # Errors
/// If [`read`] or `take` fails.
pub(crate) fn read_in_batches(
    source: &LocatedSource,
    cut: CutPoints,
    take: &mut dyn FnMut(Vec<TextPiece>) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    read(source, cut, &mut |piece| {
        bytes += piece.text.len();
        batch.push(piece);
        if bytes < BATCH_BYTES {
            return Ok(());
        }
        bytes = 0;
        take(std::mem::take(&mut batch))
    })?;
    take(batch)
}
