//! Reads a located source as pieces of text.

use super::json::for_each_record;
use super::locate::{DocumentFormat, LocatedSource};
use super::piece::{PieceSink, TextPiece};
use super::{parquet, text};
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
        DocumentFormat::Json(format, text) => for_each_record(&file.path, *format, &mut |position, record| {
            if let Some(text) = text.extract(record).map_err(|message| position.error(&file.path, message))? {
                sink(TextPiece::whole_document(text))?;
            }
            Ok(true)
        }),
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
