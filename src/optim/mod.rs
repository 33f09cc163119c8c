//! Optimizers over flat buffers, clipping, and the learning-rate schedule.

pub mod update;

pub use update::{clip_scale, update};
