//! Measures this machine, so that the planner can predict times.

mod blocks;
mod cache;
mod clock;
mod copies;
mod run;

pub use cache::{Calibration, load, path, save};
pub use run::{Effort, calibrate};
