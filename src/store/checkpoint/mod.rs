//! Checkpoints: weights, optimizer state and place in the run, as safetensors and a small state file.

mod folder;
mod format;
mod hash;
mod load;
mod save;

pub use folder::{Checkpoints, Entry, Resumed, Saved, Which, load_weights, steps};
pub use format::{MODEL, OPTIMIZER, STATE};
pub(crate) use hash::hashes;
pub use hash::{StateHash, state_hash};
