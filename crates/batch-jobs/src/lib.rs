//! Jobs of Slurm: [`BatchJob`] is a run, or an array of points of a sweep, and makes its script from a template; [`slurm`] submits scripts
//! and reads the queue.

#![forbid(unsafe_code)]

mod job;
mod needs;
mod queued_runs;
pub mod slurm;

pub use job::{BatchJob, JobArray, JobSettings, TEMPLATE, check_folder};
pub use needs::JobNeeds;
pub use queued_runs::mark_queued;
