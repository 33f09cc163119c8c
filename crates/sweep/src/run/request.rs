//! A request to run a sweep.

use std::path::PathBuf;

use crate::SweepSpec;
use runner_batch_jobs::JobSettings;
use runner_config::LoadOptions;

/// A sweep file, and how its points are to be run.
pub struct SweepRequest<'a> {
    pub spec: &'a SweepSpec,
    /// The folder of the sweep to resume; `spec` is then its copy of the sweep file. `None` resumes or starts the sweep of the file `spec`.
    pub started: Option<PathBuf>,
    /// The layers over the experiment of every point: `--set` flags, environment variables, and what templates may read.
    pub options: LoadOptions<'a>,
    /// Names of the program's own environment variables, which set no key of an experiment.
    pub own_variables: &'a [&'a str],
    /// True to start another sweep even if the file has one.
    pub start_new: bool,
    /// True to write and start nothing.
    pub dry_run: bool,
    /// The number of concurrent runs.
    pub parallel: usize,
    /// The number of threads of each run.
    pub threads: usize,
    /// The settings of the jobs, if Slurm starts the runs; otherwise this process does, on this machine.
    pub slurm: Option<JobSettings>,
}
