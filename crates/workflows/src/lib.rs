//! A run from its file to its finished record: data is prepared, the plan is made, ranks are started, watched and restarted, and
//! what they compute is recorded.
//!
//! [`apply::apply`] starts, resumes or finds the run of an experiment; [`resume::resume`], [`fork::fork`] and
//! [`reproduce::reproduce`] start from a recorded run. Each of them makes a `RunStart`, which finds or creates the run. Their caller receives
//! the events of the run through a [`RunObserver`](runner_inputs::RunObserver); nothing here writes to a terminal.

#![forbid(unsafe_code)]

pub mod apply;
pub mod calibrate;
mod changed_file;
pub mod continuation;
pub mod evaluated_model;
pub mod event_lines;
pub mod exported_weights;
mod final_test;
pub mod fork;
pub mod launched;
pub mod opened_run;
pub mod outcome;
pub mod rank_inputs;
mod recorded_summary;
mod recording;
pub mod reproduce;
mod restarts;
pub mod resume;
pub mod run_error;
mod run_opening;
mod run_start;
pub mod seal;
pub mod session;
pub mod session_facts;
pub mod submission;
pub mod tracking;
