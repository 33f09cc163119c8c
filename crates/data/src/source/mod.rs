//! Where documents come from: text, JSON and parquet files, read in bounded memory.

mod json;
mod jsonl;
mod locate;
mod parquet;
mod read;
mod text;
mod text_of;

pub(super) use json::for_each_item;
pub(super) use jsonl::for_each_line;
pub(super) use locate::{Documents, Located, Origin, locate, own_source};
pub(super) use read::{Piece, read};
pub(super) use text_of::TextOf;

/// A document longer than this is refused where it has to be held whole.
const DOCUMENT_LIMIT: usize = 256 << 20;

/// A byte count for a message.
fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
