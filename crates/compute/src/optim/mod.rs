//! Optimizers over flat buffers, and clipping.

mod update;

pub use update::{clip_scale, update};
