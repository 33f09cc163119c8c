//! Weights of other programs: Hugging Face folders and llm.c's model files, read and written.

mod describe;
mod dtype;
mod error;
mod folder;
mod gpt2;
mod header;
mod json;
mod llama;
mod llmc;
mod names;
mod opened;

pub use describe::{Described, describe};
pub use dtype::Dtype;
pub use error::WeightsError;
pub use names::beyond_format;
pub(crate) use opened::FIXED;
pub use opened::Opened;
