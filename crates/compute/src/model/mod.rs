//! Model families as lists of blocks over flat parameter storage.

mod backward;
mod block;
mod blocks;
mod decode;
pub mod init;
#[cfg(test)]
mod tests;

pub use crate::nn::Params;
pub use crate::nn::Stream;
pub use block::{Block, BlockActivations, SavedActivations};
pub use blocks::{Model, Output, OutputHook, name_of_output};
pub use decode::KvCache;
