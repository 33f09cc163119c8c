//! The pure planner: an experiment and facts about data and machine become one Program per rank.

mod block_time;
pub mod check;
pub mod cluster;
pub mod compile;
pub mod cost;
pub mod device_memory;
mod devices;
mod emit;
pub mod error;
pub mod facts;
mod fit;
pub mod forecast;
pub mod gpu_facts;
mod hash;
mod interpolate;
pub mod length;
pub mod local;
pub mod memory;
pub mod mesh;
pub mod partition;
pub mod precision;
mod prices;
pub mod program;
mod ranks;
pub mod rates;
mod render;
pub mod schedule;
pub mod simulate;
mod stages;
pub mod svg;
mod text;
pub mod timeline;
pub mod types;

#[cfg(test)]
mod simulate_tests;

#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod tests_hash;

pub use cluster::{ClusterError, KNOWN_DEVICES};
pub use compile::compile;
pub use devices::{check_devices, one_device};
pub use error::PlanError;
pub use facts::{ClusterFacts, DeviceFacts};
pub use fit::would_fit;
pub use forecast::Forecast;
pub(crate) use ranks::mesh;
pub use render::Shown;
pub(crate) use render::bytes;
pub use types::{FORMAT, Flops, MemoryEstimate, MemoryItem, ParamCounts, Plan, RankPlan, Totals};
