//! Model families as lists of blocks over flat parameter storage.

mod backward;
mod blocks;
mod decode;
mod gpt2;
pub mod init;
mod llama;

pub use crate::nn::Params;
pub use blocks::{Block, Model, Output, OutputHook, SavedActivations};
pub use decode::{KvCache, StageInput};
