//! The pure planner: it compiles an experiment and facts about data and machine into one program per rank, proves the programs
//! right, and predicts their time and memory.

#![forbid(unsafe_code)]

mod block_time;
pub mod check;
pub mod comparability;
mod compile;
mod cost;
pub mod device_memory;
mod devices;
mod error;
mod forecast;
mod hash;
mod interleaving;
mod interpolation;
mod learning_rate;
pub mod memory;
mod memory_shortage;
mod partition;
pub mod quantity;
mod ranks;
pub mod render;
mod run_length;
pub mod schedule;
pub mod search;
mod shard;
mod simulate;
mod slow_sizes;
mod step_costs;
mod step_program;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod timeline;
pub mod topology;
mod trajectory;
mod wire;

#[cfg(test)]
mod tests;

pub use comparability::MeasurementBasis;
pub use compile::{compile, compile_continuation};
pub use devices::{check_devices, device_for_reading};
pub use error::PlanError;
pub use memory_shortage::suggest_change_for_rank;
pub use ranks::mesh;
pub use trajectory::Trajectory;
pub use wire::bytes_sent;
