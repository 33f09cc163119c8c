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

use std::collections::BTreeSet;
use std::path::Path;

use crate::error::Result;
use json::JsonFormat;
use piece::PieceSink;
use record::RecordSink;
use runner_spec::experiment::RecordFormat;

pub use compressed::compression_advice;
pub(super) use locate::{DocumentFormat, LocatedSource, count_files, locate, locate_on_hub};
pub(super) use piece::{MAX_DOCUMENT_BYTES, TextPiece, describe_document_limit};
pub(super) use read::{BATCH_BYTES, BatchCollector, read, read_file, read_in_batches};
pub(super) use text_selector::TextSelector;

/// Hands the document of each record of the file `path` to `sink`, in order.
///
/// # Errors
/// If the file does not have this format, a record lacks a field or has no text there, or `sink` fails.
fn read_records(path: &Path, format: RecordFormat, text: &TextSelector, sink: &mut PieceSink<'_>) -> Result<()> {
    let take: &mut RecordSink<'_> = &mut |position, record| {
        if let Some(text) = text.extract(record).map_err(|message| position.error(path, message))? {
            sink(TextPiece::whole_document(text))?;
        }
        Ok(true)
    };
    match format {
        RecordFormat::Parquet => parquet::for_each_record(path, &text.fields(), take),
        RecordFormat::Csv(separator) => csv::for_each_record(path, separator, &text.fields(), take),
        RecordFormat::Jsonl => json::for_each_record(path, JsonFormat::Lines, take),
        RecordFormat::Json => json::for_each_record(path, JsonFormat::Array, take),
    }
}

/// Hands each record of the file `path`, in one of the formats that have lists, to `sink` until it returns false. Of formats with columns only
/// `names` are read.
///
/// # Errors
/// If the file has another format, as far as it is read, lacks a column, or `sink` fails.
pub(super) fn for_each_record(path: &Path, names: &BTreeSet<&str>, sink: &mut RecordSink<'_>) -> Result<()> {
    if parquet::is_parquet(path)? {
        parquet::for_each_record(path, names, sink)
    } else {
        json::for_each_record(path, JsonFormat::Lines, sink)
    }
}
