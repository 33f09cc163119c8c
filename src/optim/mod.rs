//! Optimizers over flat buffers, clipping, and the learning-rate schedule.

pub mod lr;

pub use lr::lr_at;
