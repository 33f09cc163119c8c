//! What trains the segments of a sweep: processes on this machine, or jobs of Slurm.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::point_jobs::PointJobs;
use super::point_process::{PointProcess, ReportedProgress, last_error, point_arguments};
use super::request::SweepRequest;
use super::segment_outcome::SegmentEnd;
use super::slurm::PointSubmitter;
use crate::record::PlannedPoint;
use crate::record::sweep_dir::{SweepDir, point_job_output, point_log};
use runner_spec::error::Result;

/// What trains one segment.
#[derive(Debug)]
pub(super) enum SegmentWorker {
    Process(PointProcess),
    /// A job of the point with this number. Its output from byte `log_from` on is its own.
    Job {
        point: usize,
        /// True if this call submitted it.
        is_ours: bool,
        log_from: u64,
    },
}

/// Starts the workers of a sweep.
#[derive(Debug)]
pub(super) struct SegmentWorkers<'a> {
    sweep: &'a SweepDir,
    runs: &'a Path,
    threads: usize,
    /// Variables that the processes must not see: what they set is in the resolved experiments.
    hidden_variables: Vec<String>,
    /// The jobs of the points, if Slurm starts them.
    jobs: Option<PointJobs<'a>>,
}

impl<'a> SegmentWorkers<'a> {
    /// The workers of `sweep`, whose runs are in the folder `runs`.
    ///
    /// # Errors
    /// If jobs cannot be submitted, because the path of this program is unknown.
    pub(super) fn new(sweep: &'a SweepDir, request: &'a SweepRequest<'_>, runs: &'a Path) -> Result<Self> {
        let threads = request.threads;
        let submitter = |settings| PointSubmitter::new(sweep, settings, threads, 1);
        let jobs = request.slurm.as_ref().map(submitter).transpose()?.map(PointJobs::new);
        let hidden_variables = request.options.env.iter().map(|(name, _)| name.clone()).collect();
        Ok(Self { sweep, runs, threads, hidden_variables, jobs })
    }

    /// True if the workers are jobs, for which Slurm shares out the resources of its machines.
    pub(super) fn are_jobs(&self) -> bool {
        self.jobs.is_some()
    }

    /// Reads the queue of jobs if that is due.
    ///
    /// # Errors
    /// If Slurm does not show it.
    pub(super) fn poll(&mut self) -> Result<()> {
        self.jobs.as_mut().map_or(Ok(()), PointJobs::poll)
    }

    /// True if `point` has a job.
    pub(super) fn has_job(&self, point: &PlannedPoint) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.waits(point.index).is_some())
    }

    /// The file with what the workers of `point` write.
    pub(super) fn log(&self, point: &PlannedPoint) -> PathBuf {
        let log = if self.are_jobs() { point_job_output } else { point_log };
        log(self.sweep.path(), point.index)
    }

    /// Starts a worker that trains `point` to step `until`, or to its end; a process on `devices`. With `trunk`, a run's id and a step, the
    /// run of the point is created from that run's checkpoint.
    ///
    /// # Errors
    /// If the point's experiment is damaged, or the system or Slurm refuses.
    pub(super) fn start(
        &mut self,
        point: &PlannedPoint,
        until: Option<u64>,
        devices: &[String],
        trunk: Option<(&str, u64)>,
    ) -> Result<SegmentWorker, String> {
        let log = self.log(point);
        if let Some(jobs) = &mut self.jobs {
            let log_from = log.metadata().map_or(0, |metadata| metadata.len());
            let is_ours = jobs.submit(point.index, until).map_err(|error| error.to_string())?;
            return Ok(SegmentWorker::Job { point: point.index, is_ours, log_from });
        }
        let path = self.sweep.path();
        let arguments = point_arguments(path, self.sweep.record(), point, self.runs, self.threads, until);
        let mut arguments = arguments.map_err(|error| error.to_string())?;
        if let Some((run, steps)) = trunk {
            arguments.extend(["--continue", run, "--continue-step", &steps.to_string()].map(OsString::from));
        }
        // The sweep itself may be a process of a launcher.
        arguments.extend(["--json", "--launcher", "local"].map(OsString::from));
        PointProcess::start(&arguments, log, &self.hidden_variables, devices)
            .map(SegmentWorker::Process)
            .map_err(|error| format!("cannot start its process: {error}"))
    }

    /// How the work of `worker` ended, if it has.
    pub(super) fn end(&self, worker: &mut SegmentWorker) -> Option<SegmentEnd> {
        match worker {
            SegmentWorker::Process(process) => process.exit(),
            SegmentWorker::Job { point, is_ours, .. } => {
                let has_ended = self.jobs.as_ref().is_some_and(|jobs| jobs.waits(*point).is_none());
                has_ended.then_some(SegmentEnd::LeftQueue { is_ours: *is_ours })
            }
        }
    }

    /// The progress that `worker` last reported. Jobs do not report steps.
    pub(super) fn progress(&self, worker: &SegmentWorker) -> ReportedProgress {
        match worker {
            SegmentWorker::Process(process) => process.progress(),
            SegmentWorker::Job { point, .. } => {
                let has_begun = self.jobs.as_ref().is_some_and(|jobs| jobs.waits(*point) == Some(false));
                ReportedProgress { has_begun, ..ReportedProgress::default() }
            }
        }
    }

    /// The last error that `worker` wrote to its log.
    pub(super) fn last_error(&self, worker: &SegmentWorker) -> Option<String> {
        match worker {
            SegmentWorker::Process(process) => process.last_error(),
            SegmentWorker::Job { point, log_from, .. } => {
                last_error(&point_job_output(self.sweep.path(), *point), *log_from)
            }
        }
    }
}
