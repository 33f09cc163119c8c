//! Inspects files of tokens.

mod report;
mod tally;
mod tokens;

pub use report::{DocumentCounts, InspectedFile, InspectionReport, Sample, TokenFrequency, Vocabulary};
pub use tokens::inspect_tokens;
