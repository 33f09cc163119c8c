//! Checkpoints: weights, optimizer state and position in the run, as safetensors files and a small state file, in one part or in
//! one per rank that owns tensors.

mod entries;
mod export;
mod folder;
mod format;
mod hash;
mod header;
mod load;
pub mod part;
mod tensors;

pub use entries::{
    CheckpointChoice, CheckpointEntry, DAMAGED, KeptCheckpoints, checkpoints_to_keep, dir_name, discard,
    find_damage_of_newest, is_checkpoint_file, is_checkpoint_folder, leftovers, newest_step, pending_folder,
    saved_steps,
};
pub use export::{ExportedWeights, WeightSink, export_weights, stream_weights};
pub use folder::{Checkpoints, ChosenCheckpoint, SavedCheckpoint, load_state, load_weights};
pub use format::{FileRecord, MODEL, OPTIMIZER, STATE};
pub use hash::{StateHash, hash_state, whole_hash};
pub use part::{PartRecord, PartSpec};
pub use tensors::{SavedPosition, chosen_step, first_difference, recorded_hash, recorded_position};
