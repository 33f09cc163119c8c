//! Sources of documents, read in bounded memory. Each format of files has its reader here. Records of every format take one path: a
//! reader hands them to [`read_records`], which selects their texts.

mod compressed;
mod csv;
mod json;
mod locate;
mod parquet;
mod piece;
mod read;
mod record;
mod text;
mod text_selector;

use std::path::Path;

use crate::error::Result;
use piece::PieceSink;
use runner_spec::experiment::RecordFormat;

pub use compressed::compression_advice;
pub(super) use json::{JsonFormat, for_each_record};
pub(super) use locate::{DocumentFormat, LocatedSource, count_files, locate, locate_on_hub};
pub(super) use parquet::{for_each_row, is_parquet};
pub(super) use piece::{MAX_DOCUMENT_BYTES, TextPiece, describe_document_limit};
pub(super) use read::{BatchCollector, read, read_file, read_in_batches};
pub(super) use text_selector::TextSelector;

/// Hands the document of each record of the file `path` to `sink`, in order.
///
/// # Errors
/// If the file does not have this format, a record lacks a field or has no text there, or `sink` fails.
fn read_records(path: &Path, format: RecordFormat, text: &TextSelector, sink: &mut PieceSink<'_>) -> Result<()> {
    let take: &mut record::RecordSink<'_> = &mut |position, record| {
        if let Some(text) = text.extract(record).map_err(|message| position.error(path, message))? {
            sink(TextPiece::whole_document(text))?;
        }
        Ok(true)
    };
    match format {
        RecordFormat::Parquet => parquet::for_each_record(path, &text.fields(), take),
        RecordFormat::Csv(separator) => csv::for_each_record(path, separator, &text.fields(), take),
        RecordFormat::Jsonl => for_each_record(path, JsonFormat::Lines, take),
        RecordFormat::Json => for_each_record(path, JsonFormat::Array, take),
    }
}

/// The bytes of text in the file `path` of `size` bytes; `None` if it cannot be read. Compressed columns are shorter than their text.
fn text_bytes(path: &Path, format: RecordFormat, text: &TextSelector, size: u64) -> Option<u64> {
    match format {
        RecordFormat::Parquet => parquet::column_bytes(path, &text.fields()).ok()?,
        _ => Some(size),
    }
}
