//! Optimizers over flat buffers, clipping, and the learning-rate schedule.

mod lr;
mod update;

pub use lr::lr_at;
pub use update::{clip_scale, update};
