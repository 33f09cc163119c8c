//! Sources of documents: text, JSON and parquet files, read in bounded memory.

mod json;
mod locate;
mod parquet;
mod piece;
mod read;
mod text;
mod text_selector;

pub(super) use json::{JsonFormat, for_each_record};
pub(super) use locate::{DocumentFormat, LocatedSource, locate, locate_on_hub, separate_source};
pub use parquet::Column;
pub(super) use parquet::{for_each_row, is_parquet, parquet_columns};
pub(super) use piece::TextPiece;
pub(super) use read::{BatchCollector, read, read_file, read_in_batches};
pub(super) use text_selector::TextSelector;
