//! From a file to a prepared, planned experiment: names on the hub become files, data is prepared, weights are checked, and the plan is
//! made for the devices of the run.
//!
//! A caller receives what happens on the way through an [`RunObserver`]. Nothing here computes: crates that show or start runs
//! need no tensors.

#![forbid(unsafe_code)]

pub mod calibration;
mod host;
mod hub_names;
mod input_notes;
mod inputs;
mod moved_data;
mod observer;
mod prepared_run;

pub use host::{Host, MAX_THREADS_PER_CORE, ProgramBuild, local_devices};
pub use hub_names::{
    fetch_model_folder, local_tasks, local_tokenizer, lower_hub, model_fetch_error, model_fetcher, pin_hub_commits,
    starting_folder,
};
pub use input_notes::foreign_tokenizer;
pub use inputs::{
    RecordedInputs, check_prompts, has_private_text, initial_weights, prepare_data, prepare_evaluation, prepare_inputs,
    prepare_rank_inputs, recorded_tokenizer,
};
pub use moved_data::{MovedData, check_same_data, data_files, explain_missing_data, missing_data};
pub use observer::{IgnoreEvents, RunEvent, RunObserver};
pub use prepared_run::{PreparedInputs, PreparedRun, settle_micro_batch};
