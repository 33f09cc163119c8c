//! Sources of documents: text, JSON and parquet files, read in bounded memory.

mod compressed;
mod json;
mod locate;
mod parquet;
mod piece;
mod read;
mod text;
mod text_selector;

pub use compressed::compression_advice;
pub(super) use json::{JsonFormat, for_each_record};
pub(super) use locate::{DocumentFormat, LocatedSource, count_files, locate, locate_on_hub, separate_source};
pub(super) use parquet::{column_bytes, for_each_row, is_parquet};
pub(super) use piece::{MAX_DOCUMENT_BYTES, TextPiece, describe_document_limit};
pub(super) use read::{BatchCollector, read, read_file, read_in_batches};
#[cfg(test)]
pub(super) use text_selector::TextSelector;
