//! Checkpoints: weights, optimizer state and place in the run, as safetensors and a small state file.

mod folder;
mod format;
mod hash;
mod load;
mod save;

pub use folder::{Checkpoints, Entry, Resumed, Saved, Which, load_weights};
pub use format::{MODEL, OPTIMIZER, STATE};
pub use hash::{StateHash, state_hash};
