//! The runs for which a job waits or runs in a scheduler's queue.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::slurm::queued_jobs;
use runner_record::catalog::{ListedRun, ListedStatus, SLURM_SCRIPT, SWEEPS};
use runner_spec::error::Result;

/// The longest that a list of runs waits for the queue.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(5);

/// Gives those of `runs`, in the folder `root`, for which a job waits or runs in Slurm's queue the status that they have by it. Slurm is
/// asked only if a job was submitted for one of them, or for their sweep. Without Slurm nothing changes.
///
/// # Errors
/// If Slurm does not show its queue.
pub fn mark_queued(root: &Path, runs: &mut [ListedRun]) -> Result<()> {
    let may_be_queued = |run: &ListedRun| {
        matches!(run.status, ListedStatus::Running | ListedStatus::Interrupted | ListedStatus::Failed)
    };
    let submitted: Vec<(&mut ListedRun, SubmittedJob)> = runs
        .iter_mut()
        .filter(|run| may_be_queued(run))
        .filter_map(|run| SubmittedJob::of_run(root, run).map(|job| (run, job)))
        .collect();
    if submitted.is_empty() {
        return Ok(());
    }
    let Some(queue) = queued_jobs(QUEUE_TIMEOUT)? else { return Ok(()) };
    for (run, job) in submitted {
        if let Some(queued) = queue.iter().find(|queued| queued.script == job.script && queued.point == job.point) {
            run.status = match (queued.is_pending, queued.is_requeued) {
                // Whatever the queue says of it, a process works on the run.
                _ if run.status == ListedStatus::Running => ListedStatus::Running,
                (false, _) => ListedStatus::Running,
                (true, false) => ListedStatus::Pending,
                (true, true) => ListedStatus::Requeued,
            };
            run.job = Some(queued.id.clone());
        }
    }
    Ok(())
}

/// A job as the queue names it.
struct SubmittedJob {
    script: PathBuf,
    point: Option<usize>,
}

impl SubmittedJob {
    /// The job that was submitted for `run` or for its point of a sweep, if there is one.
    fn of_run(root: &Path, run: &ListedRun) -> Option<Self> {
        let own = Self { script: run.path.join(SLURM_SCRIPT), point: None };
        let of_point = run.sweep.as_ref().map(|sweep| Self {
            script: root.join(SWEEPS).join(&sweep.id).join(SLURM_SCRIPT),
            point: Some(sweep.point),
        });
        let found = [Some(own), of_point].into_iter().flatten().find(|job| job.script.is_file())?;
        Some(Self { script: found.script.canonicalize().ok()?, ..found })
    }
}
