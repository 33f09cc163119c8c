//! Many runs: sweeps, comparison of two runs, recorded plans of any version, housekeeping.

#![forbid(unsafe_code)]

pub mod compare;
pub mod gc;
pub mod remove;
pub mod remove_sweep;
pub mod stopped_points;
pub mod stored_plan;
pub mod sweep;
pub mod sweep_dir;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
