//! Model families as lists of blocks over flat parameter storage.

pub mod blocks;
pub mod gpt2;
pub mod init;
pub mod llama;
pub mod params;
pub mod spec;

pub use blocks::{Block, KvCache, Model, Output, Saved};
pub use params::{ParamEntry, ParamLayout, Params};
pub use spec::{Family, Init, ModelSpec, ParamSpec, parameters};
