//! From text to token ids and back.

mod difference;
mod folder_tokens;
mod gpt2_folder;
mod gpt2_words;
mod library;
mod make;
mod replacements;
mod text_tokenizer;
mod token_bytes;
mod token_ids;
mod tokenizer_file;
mod tokenizer_json;
mod train;
mod transformers;
mod word_vocabulary;

pub use difference::token_difference;
pub(super) use make::make_tokenizer;
pub use make::{load_tokenizer, may_join_documents, train_tokenizer};
pub use text_tokenizer::TextTokenizer;

#[cfg(test)]
mod tests;
