//! Weights of other programs: Hugging Face folders and state dicts of PyTorch, read and written.

#![forbid(unsafe_code)]

mod describe;
mod described_model;
mod difference;
mod dtype;
mod error;
mod export;
mod export_hf;
mod export_torch;
mod file_tensor;
mod folder;
mod gpt2;
mod llama;
mod lost_settings;
mod opened;
mod pickle;
mod staged_folder;
mod state_dict;
mod torch_file;
mod writer;

pub use describe::{describe, describe_config};
pub use described_model::DescribedModel;
pub use difference::{CONTEXT, Difference, differences};
pub use dtype::Dtype;
pub use error::WeightsError;
pub use export::{WeightSource, WrittenFiles};
pub use export_hf::{FolderCheck, HfExport};
pub use export_torch::TorchExport;
pub use lost_settings::describe_lost_template;
pub use opened::OpenedWeights;
