//! From text to token ids and back.

mod build;
mod english;
mod gpt2_words;
mod hf;
mod huggingface;
mod library;
mod load;
mod merges;
mod stored;
mod text_tokenizer;
mod train;
mod words;

pub(super) use build::build;
pub use load::{load_tokenizer, train_tokenizer};
pub use text_tokenizer::TextTokenizer;
pub(super) use words::Cut;
