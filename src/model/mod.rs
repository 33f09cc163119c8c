//! Model families as lists of blocks over flat parameter storage.

pub mod backward;
pub mod blocks;
pub mod decode;
pub mod gpt2;
pub mod init;
pub mod llama;
pub mod params;
pub mod spec;
pub mod stage;
pub mod variant;

pub use crate::config::experiment::Recompute;
pub use backward::WeightWork;
pub use blocks::{Block, Model, Output, Saved, Seen};
pub use decode::{KvCache, StageInput};
pub use params::{ParamEntry, ParamLayout, Params};
pub use spec::{Activation, Family, Init, ModelSpec, NormPlace, ParamSpec, PositionKind, Variant, parameters};
pub use stage::{stage_parameters, tied_copy, tied_original, token_embedding};
