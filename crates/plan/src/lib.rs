//! The pure planner: it compiles an experiment and facts about data and machine into one program per rank, proves the programs
//! right, and predicts their time and memory.

#![forbid(unsafe_code)]

pub mod check;
pub mod comparability;
mod compile;
mod error;
mod evaluations;
pub mod forecast;
mod hash;
mod learning_rate;
pub mod memory;
pub mod quantity;
pub mod ranks;
mod run_length;
pub mod schedule;
pub mod search;
mod stages;
mod step_program;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod trajectory;

#[cfg(test)]
mod tests;

pub use comparability::MeasurementBasis;
pub use compile::{compile, compile_continuation, planned_rows};
pub use error::PlanError;
pub use forecast::wire::bytes_sent;
pub use memory::shortage::suggest_change_for_rank;
pub use ranks::devices::{check_devices, device_for_reading};
pub use ranks::mesh;
pub use trajectory::Trajectory;
