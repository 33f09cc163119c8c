//! From text to token ids and back.

mod build;
mod hf;
mod library;
mod stored;
mod text_tokenizer;
mod train;
mod words;

pub(super) use build::build;
pub use hf::{HfTokenizer, SpecialTokens};
pub use text_tokenizer::TextTokenizer;
pub(super) use words::Cut;
