//! Measures this machine, so that the planner can predict times.

mod blocks;
mod clock;
mod copies;
mod run;
mod sums;

pub use run::{measure_parts, part_count};
