//! What files of tokens and of text hold.

mod columns;
mod report;
mod tally;
mod text;
mod tokens;

pub(super) use columns::column_bytes;
pub use report::{Column, Documents, Frequent, Inspected, InspectedFile, Sample, TextFacts, Vocabulary};
pub use text::inspect_text;
pub use tokens::inspect_tokens;
