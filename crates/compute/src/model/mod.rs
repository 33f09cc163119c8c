//! Model families as lists of blocks over flat parameter storage.

mod backward;
mod blocks;
mod decode;
mod gpt2;
pub mod init;
mod llama;
mod params;

pub use blocks::{Block, Model, Output, OutputHook, SavedActivations};
pub use decode::{KvCache, StageInput};
pub use params::Params;
