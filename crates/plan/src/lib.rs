//! The pure planner: an experiment and facts about data and machine become one Program per rank.

mod block_time;
pub mod check;
pub mod compile;
pub mod cost;
pub mod device_memory;
pub mod devices;
mod emit;
pub mod error;
mod fit;
pub mod forecast;
mod hash;
mod interpolate;
pub mod length;
pub mod memory;
pub mod partition;
mod prices;
mod ranks;
pub mod render;
pub mod schedule;
pub mod simulate;
mod stages;
pub mod svg;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod timeline;
pub mod topology;

#[cfg(test)]
mod simulate_tests;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_hash;

pub use compile::compile;
pub use devices::{check_devices, one_device};
pub use error::PlanError;
pub use fit::would_fit;
pub use ranks::mesh;
