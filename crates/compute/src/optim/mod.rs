//! Optimizers over flat buffers, clipping, and the learning-rate schedule.

pub mod lr;
pub mod update;

pub use lr::lr_at;
pub use update::{clip_scale, update, update_copied};
