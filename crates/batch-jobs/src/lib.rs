//! Jobs of batch schedulers: [`BatchJob`] is a run, or an array of points of a sweep, and makes its script from a template; [`slurm`] submits
//! scripts and reads the queue.

#![forbid(unsafe_code)]

mod job;
mod needs;
mod queued_runs;
mod scheduler;
pub mod slurm;
mod time_limit;

pub use job::{BatchJob, JobArray, JobSettings};
pub use needs::{JobNeeds, describe_time_limit};
pub use queued_runs::mark_queued;
pub use scheduler::{Scheduler, check_folder};
pub use time_limit::parse_time_limit;
