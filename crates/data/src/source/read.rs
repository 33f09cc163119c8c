//! Reads a located source as pieces of text.

use super::locate::{DocumentFormat, LocatedSource};
use super::piece::{PieceSink, TextPiece};
use super::{for_each_record, text};
use crate::cut_points::CutPoints;
use crate::error::{DataError, Result};

/// Hands the documents of `source` to `sink`, in order, in pieces where `cut` allows. Empty documents are left out. One block, line
/// or page is held at a time, and a whole document only where it may not be cut.
///
/// # Errors
/// If a file does not have the format that the source says, or `sink` fails.
pub(crate) fn read(source: &LocatedSource, cut: CutPoints, sink: &mut PieceSink<'_>) -> Result<()> {
    (0..source.files.len()).try_for_each(|file| read_file(source, file, cut, sink))
}

/// Hands the documents of the file `index` of `source` to `sink`, as [`read`] does. No document continues in the next file.
///
/// # Errors
/// If the file cannot be downloaded, does not have the format that the source says, or `sink` fails.
pub(crate) fn read_file(source: &LocatedSource, index: usize, cut: CutPoints, sink: &mut PieceSink<'_>) -> Result<()> {
    let path = source.path(index, &|_| ())?;
    match &source.documents {
        DocumentFormat::Text => text::read(&path, cut, sink),
        DocumentFormat::Records(format, selector) => {
            for_each_record(&path, *format, &selector.fields(), &mut |position, record| {
                if let Some(text) = selector.extract(record).map_err(|message| position.error(&path, message))? {
                    sink(TextPiece { text, starts_document: true })?;
                }
                Ok(true)
            })
        }
        DocumentFormat::Tokens(_) => Err(DataError::file(&path, "token shards hold no text")),
    }
}

/// Collects items until they have `size` bytes of text, and hands them to `take`.
pub(crate) struct BatchCollector<'a, T> {
    items: Vec<T>,
    bytes: usize,
    size: usize,
    take: &'a mut dyn FnMut(Vec<T>) -> Result<()>,
}

impl<'a, T> BatchCollector<'a, T> {
    pub(crate) fn new(size: usize, take: &'a mut dyn FnMut(Vec<T>) -> Result<()>) -> Self {
        Self { items: Vec::new(), bytes: 0, size, take }
    }

    /// Adds an item with this number of bytes of text.
    pub(crate) fn push(&mut self, item: T, bytes: usize) -> Result<()> {
        self.bytes += bytes;
        self.items.push(item);
        if self.bytes >= self.size { self.flush() } else { Ok(()) }
    }

    /// Hands the collected items over, if there are any.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.bytes = 0;
        if self.items.is_empty() { Ok(()) } else { (self.take)(std::mem::take(&mut self.items)) }
    }
}

/// Bytes of text in a batch. Encoding a batch needs a few times this much memory. A large vocabulary drops rare words after each batch, so
/// this number determines which.
pub(crate) const BATCH_BYTES: usize = 8 << 20;

/// Hands the pieces of [`read`] to `take` in batches of some megabytes.
///
/// # Errors
/// If [`read`] or `take` fails.
pub(crate) fn read_in_batches(
    source: &LocatedSource,
    cut: CutPoints,
    take: &mut dyn FnMut(Vec<TextPiece>) -> Result<()>,
) -> Result<()> {
    let mut batch = BatchCollector::new(BATCH_BYTES, take);
    read(source, cut, &mut |piece| {
        let bytes = piece.text.len();
        batch.push(piece, bytes)
    })?;
    batch.flush()
}
