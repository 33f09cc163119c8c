//! Inspects files of tokens and of text.

mod columns;
mod report;
mod tally;
mod text;
mod tokens;

pub use report::{DocumentCounts, InspectedFile, InspectionReport, Sample, TextFacts, TokenFrequency, Vocabulary};
pub use text::inspect_text;
pub use tokens::inspect_tokens;
