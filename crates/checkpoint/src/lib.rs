//! Checkpoints: weights, optimizer state and position in the run, as safetensors files and a small state file, in one part or in
//! one per rank that owns tensors. They are bytes here; `runner-ranks` makes tensors of them. Also what the other files of a run need, too:
//! their errors, and the small JSON files with a hash of their content.

#![forbid(unsafe_code)]

mod entries;
pub mod error;
mod export;
pub mod files;
mod folder;
mod format;
mod hash;
mod header;
mod load;
mod names;
mod part;
mod state_reader;
mod tensors;
mod write_part;

pub use entries::{
    CheckpointChoice, CheckpointEntry, KeptCheckpoints, checkpoints_to_keep, discard, find_damage_of_newest, leftovers,
    newest_step, save_failed, saved_steps,
};
pub use error::RecordError;
pub use export::{ExportedWeights, NumberSink, export_weights, stream_state, stream_weights};
pub use files::FileRecord;
pub use folder::{Checkpoints, ChosenCheckpoint, SavedCheckpoint};
pub use format::{STATE, SavedPosition};
pub use hash::{hash_state, whole_hash};
pub use header::NumberType;
pub use names::{
    DAMAGED, dir_name, is_checkpoint_file, is_checkpoint_folder, is_own_checkpoint, pending_folder, step_of_folder,
};
pub use part::{MODEL, OPTIMIZER, PartRecord, PartSpec, StateHash};
pub use state_reader::{ByteSink, StateReader, send_chunks};
pub use tensors::{chosen_step, first_difference, is_checkpoint_as_written, recorded_hash, recorded_position};
pub use write_part::{Create, write_part};
