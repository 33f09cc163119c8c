//! Checkpoints: weights, optimizer state and place in the run, as safetensors and a small state file, in one part or in one
//! for each rank that owns something.

mod entries;
mod export;
mod folder;
mod format;
mod hash;
mod header;
mod load;
pub mod part;
mod tensors;

pub use entries::{CheckpointChoice, CheckpointEntry, dir_name, kept, pending, steps};
pub use export::{ExportedWeights, WeightSink, export, stream};
pub use folder::DAMAGED;
pub use folder::{Checkpoints, ChosenCheckpoint, ResumedState, SavedCheckpoint, load, load_weights};
pub use format::{FileRecord, MODEL, OPTIMIZER, STATE};
pub use hash::hashes;
pub use hash::{StateHash, state_hash, whole_hash};
pub use part::{PartRecord, PartSpec};
pub use tensors::{first_difference, meant, recorded_hash};
