//! Measures this machine, so that the planner can predict times.

mod blocks;
mod cache;
mod clock;
mod copies;
mod run;

pub use cache::{Calibration, known_rates, load, path, save, this_processor};
pub use run::{Effort, Measurement, calibrate};
