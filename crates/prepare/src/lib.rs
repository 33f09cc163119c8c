//! From a file to a prepared, planned experiment: names on the hub become files, data is prepared, weights are checked, and the plan is
//! made for the devices of the run.
//!
//! A caller receives what happens on the way through an [`observer::RunObserver`]. Nothing here computes: crates that show or start runs
//! need no tensors.

#![forbid(unsafe_code)]

pub mod calibration;
pub mod cut_text;
pub mod details;
pub mod foreign_tokenizer;
pub mod host;
mod hub_names;
mod inputs;
pub mod observer;
pub mod prepared_run;
mod recorded_inputs;

pub use hub_names::{
    fetch_model_folder, local_choice, local_tokenizer, lower_hub, model_fetch_error, model_fetcher, pin_hub_commits,
};
pub use inputs::{
    check_prompts, has_private_text, initial_weights, prepare_data, prepare_data_of_run, prepare_evaluation,
    prepare_inputs, prepare_rank_inputs,
};
pub use recorded_inputs::{RecordedInputs, recorded_tokenizer};
