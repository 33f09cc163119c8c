//! A sweep from its file to its finished points. Its points are planned and recorded, then run on this machine or submitted to Slurm.
//!
//! [`open_sweep`] starts, resumes or finds the sweep of a file; [`run_sweep`] runs its points in separate processes and reports to a
//! [`SweepObserver`], or, with early stopping on Slurm, in jobs; [`slurm::submit_sweep`] submits them all as arrays of jobs.

mod driver;
mod event;
mod open;
mod overridden_settings;
mod plan_points;
mod point_checks;
mod point_jobs;
mod point_length;
pub(crate) mod point_problems;
mod point_process;
mod point_sources;
mod request;
mod resource_allocator;
mod segment_outcome;
mod segment_worker;
pub mod slurm;
mod trunks;
mod work_tally;

pub use driver::{SweepReport, run_sweep};
pub use event::{DriveProgress, RunningPoint, SweepEvent, SweepObserver, SweepOutcome};
pub use open::{OpenedSweep, check_sweep, explain_damaged_copy, open_sweep};
pub use point_problems::PointProblems;
pub use point_process::{ReportedProgress, point_arguments};
pub use request::SweepRequest;
