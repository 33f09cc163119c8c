//! What a person does with a folder of runs: chooses among them, removes runs and sweeps, and frees the space of what nothing needs. Sweeps
//! say which runs they need ([`runner_sweep::needed_runs`]).

#![forbid(unsafe_code)]

pub mod gc;
pub mod remove;
pub mod remove_sweep;
pub mod select;
