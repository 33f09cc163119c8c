//! The pure planner: an experiment and facts about data and machine become one Program per rank.

pub mod check;
pub mod compile;
pub mod cost;
mod devices;
mod emit;
pub mod error;
pub mod facts;
pub(crate) mod fit;
mod hash;
pub mod length;
pub mod local;
pub mod memory;
pub mod mesh;
pub mod partition;
pub mod precision;
pub mod program;
mod ranks;
mod render;
pub mod schedule;
mod text;
pub mod types;

#[cfg(test)]
pub(crate) mod tests;

pub use compile::compile;
pub use error::PlanError;
pub use facts::{ClusterFacts, DeviceFacts};
pub use types::{Flops, MemoryEstimate, MemoryItem, ParamCounts, Plan, RankPlan, Totals};
