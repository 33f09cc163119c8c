//! Sources of documents, read in bounded memory. Each format of files has its reader here. Records of every format take one path,
//! [`for_each_record`].

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
use record::RecordSink;
use runner_spec::experiment::RecordFormat;

pub use compressed::compression_advice;
pub(super) use locate::{DocumentFormat, LocatedSource, count_files, locate, locate_on_hub};
pub(super) use parquet::is_parquet;
pub(super) use piece::{MAX_DOCUMENT_BYTES, TextPiece, describe_document_limit};
pub(super) use read::{BATCH_BYTES, BatchCollector, read, read_file, read_in_batches};

/// Hands each record of the file `path` to `sink` until it returns false. Of formats with columns only `names` are read.
///
/// # Errors
/// If the file has another format, as far as it is read, lacks a column, or `sink` fails.
pub(super) fn for_each_record(
    path: &Path,
    format: RecordFormat,
    names: &BTreeSet<&str>,
    sink: &mut RecordSink<'_>,
) -> Result<()> {
    match format {
        RecordFormat::Parquet => parquet::for_each_record(path, names, sink),
        RecordFormat::Csv(separator) => csv::for_each_record(path, separator, names, sink),
        RecordFormat::Jsonl | RecordFormat::Json => json::for_each_record(path, format, sink),
    }
}
