//! Checkpoints: weights, optimizer state and position in the run, as safetensors files and a small state file, in one part or in
//! one per rank that owns tensors. They are bytes here; `runner-checkpoint` makes tensors of them.

mod entries;
mod export;
mod folder;
mod format;
mod hash;
mod header;
mod load;
pub mod part;
mod state_bytes;
mod tensors;

pub use entries::{
    CheckpointChoice, CheckpointEntry, DAMAGED, KeptCheckpoints, checkpoints_to_keep, dir_name, discard,
    find_damage_of_newest, is_checkpoint_file, is_checkpoint_folder, leftovers, newest_step, pending_folder,
    save_failed, saved_steps,
};
pub use export::{ExportedWeights, NumberSink, export_weights, stream_state, stream_weights};
pub use folder::{Checkpoints, ChosenCheckpoint, SavedCheckpoint};
pub use format::{FileRecord, MODEL, OPTIMIZER, STATE, SavedPosition};
pub use hash::{StateHash, hash_state, whole_hash};
pub use header::NumberType;
pub use part::{PartRecord, PartSpec};
pub use state_bytes::{ByteSink, StateBytes, send_chunks};
pub use tensors::{chosen_step, first_difference, recorded_hash, recorded_position};
