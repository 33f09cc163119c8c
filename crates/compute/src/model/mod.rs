//! Model families as lists of blocks over flat parameter storage.

pub mod backward;
pub mod blocks;
pub mod decode;
pub mod gpt2;
pub mod init;
pub mod llama;
pub mod params;

pub use backward::WeightWork;
pub use blocks::{Block, Model, Output, Saved, Seen};
pub use decode::{KvCache, StageInput};
pub use params::Params;
