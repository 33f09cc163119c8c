//! Weights of other programs: Hugging Face folders and llm.c's model files, read and written.

#![forbid(unsafe_code)]

mod describe;
mod dtype;
mod error;
mod export;
mod export_hf;
mod export_llmc;
mod fits;
mod folder;
mod gpt2;
mod json;
mod llama;
mod llmc;
mod names;
mod opened;
mod place;
mod writer;

pub use describe::{DescribedModel, describe};
pub use dtype::Dtype;
pub use error::{Foreign, WeightsError};
pub use export::{Source, Written};
pub use export_hf::HfExport;
pub use export_llmc::LlmcExport;
pub use fits::{CONTEXT, Difference, differences};
pub use opened::Opened;
