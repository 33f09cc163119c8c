//! Sources, tokenizers, the token cache, layouts and the data order.

pub mod types;

pub use types::{ChoiceFacts, ChoiceItem, DataFacts, IGNORE, Rows, SplitFacts};
