//! Submits the points of a sweep to Slurm as arrays of jobs, one job for each point.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::progress::SweepProgress;
use crate::record::sweep_dir::{SweepDir, absolute_path, runs_folder};
use crate::record::{PlannedPoint, SweepRecord};
use runner_batch_jobs::{BatchJob, JobArray, JobNeeds, JobSettings, slurm};
use runner_record::catalog::{SLURM_SCRIPT, SWEEP_POINTS};

use super::request::SweepRequest;
use runner_inputs::Host;
use runner_spec::error::{CommandError, Result};
use runner_spec::format::shell_word;

/// The result of a submission.
#[derive(Debug)]
pub enum Submission {
    /// The number of points that are queued or running; all others are done.
    NothingToSubmit { queued_or_running: usize },
    /// How many points were submitted, the numbers of the jobs, and the script. If the queue did not take all points: how many are left, and
    /// why.
    Submitted { points: usize, jobs: Vec<String>, script: PathBuf, left: Option<(usize, String)> },
}

/// Submits the points of `sweep` that are neither finished nor queued or running already.
///
/// # Errors
/// If Slurm's commands are missing or refuse, or the script's template has a mistake.
pub fn submit_sweep(
    sweep: &SweepDir,
    request: &SweepRequest<'_>,
    host: &Host,
    settings: &JobSettings,
) -> Result<Submission> {
    let record = sweep.record();
    let submitter = PointSubmitter::new(sweep, settings, request.threads, request.parallel)?;
    // The queue is read first: a point that ends in between is then finished, and is in neither list.
    let queued = submitter.queued_points()?;
    let open = unfinished_points(&host.runs, record);
    let points: Vec<usize> = open.iter().copied().filter(|point| !queued.contains_key(point)).collect();
    if points.is_empty() {
        return Ok(Submission::NothingToSubmit { queued_or_running: open.len() });
    }
    // The jobs of an array have the same number of tasks.
    let ranks = |point: &&usize| record.point(**point).map(|point| point.ranks);
    let layouts: BTreeSet<Option<usize>> = points.iter().map(|point| ranks(&point)).collect();
    let (mut jobs, mut refused) = (Vec::new(), None);
    let mut submitted = 0;
    for layout in layouts {
        let points: Vec<usize> = points.iter().filter(|point| ranks(point) == layout).copied().collect();
        if refused.is_none() {
            let (count, error) = submitter.submit_as_many_as_possible(&points, &mut jobs)?;
            submitted += count;
            refused = error;
        }
    }
    let left = refused.map(|error| (points.len() - submitted, error.to_string()));
    Ok(Submission::Submitted { points: submitted, jobs, script: submitter.script, left })
}

/// The numbers of the unfinished points, without duplicates.
fn unfinished_points(runs: &Path, record: &SweepRecord) -> Vec<usize> {
    let progress = SweepProgress::read(runs, record);
    let is_open = |(position, point): &(usize, &PlannedPoint)| {
        let last_rung = point.rungs.len().saturating_sub(1);
        point.same_as.is_none() && progress.result(record, *position, last_rung).is_none()
    };
    record.points.iter().enumerate().filter(is_open).map(|(_, point)| point.index).collect()
}

/// Submits points of a sweep, and finds them in Slurm's queue.
#[derive(Debug)]
pub(super) struct PointSubmitter<'a> {
    sweep: &'a SweepDir,
    settings: &'a JobSettings,
    threads: usize,
    parallel: usize,
    program: PathBuf,
    /// The absolute paths of the sweep's folder, of the script and the points in it, and of the folder of runs.
    path: PathBuf,
    script: PathBuf,
    points: PathBuf,
    runs: PathBuf,
}

impl<'a> PointSubmitter<'a> {
    /// At most `parallel` jobs of an array run at once, each with `threads` threads.
    ///
    /// # Errors
    /// If the path of this program is unknown.
    pub(super) fn new(sweep: &'a SweepDir, settings: &'a JobSettings, threads: usize, parallel: usize) -> Result<Self> {
        let program = std::env::current_exe().map_err(CommandError::io("this program's file"))?;
        let path = absolute_path(sweep.path());
        let (script, points, runs) = (path.join(SLURM_SCRIPT), path.join(SWEEP_POINTS), runs_folder(&path));
        Ok(Self { sweep, settings, threads, parallel, program, path, script, points, runs })
    }

    /// The points that wait or run in jobs of this user, whichever call submitted them; true for those that wait.
    ///
    /// # Errors
    /// If Slurm does not report it: a queued point must not be submitted twice.
    pub(super) fn queued_points(&self) -> Result<BTreeMap<usize, bool>> {
        let jobs = slurm::jobs_of_script(&self.script)?;
        Ok(jobs.into_iter().filter_map(|job| Some((job.point?, job.is_pending))).collect())
    }

    /// Submits `points`, which have the same number of ranks, as an array, and returns the number of the job. They train to step `until`,
    /// or to their end.
    ///
    /// # Errors
    /// If Slurm refuses, the script cannot be written, or its template has a mistake.
    pub(super) fn submit(&self, points: &[usize], until: Option<u64>) -> Result<String> {
        self.sweep.write_script(&self.job(points, until).script()?)?;
        slurm::submit(&self.script)
    }

    /// Submits `points`, which have the same number of ranks, as arrays, as far as the user may have so many jobs, and adds the numbers of the
    /// jobs to `jobs`. Returns the number of points that were submitted, and the refusal of the others.
    ///
    /// # Errors
    /// Those of [`Self::submit`], if nothing was submitted.
    fn submit_as_many_as_possible(
        &self,
        points: &[usize],
        jobs: &mut Vec<String>,
    ) -> Result<(usize, Option<CommandError>)> {
        let (mut done, mut size) = (0, points.len());
        while done < points.len() {
            size = size.min(points.len() - done);
            match self.submit(&points[done..done + size], None) {
                Ok(job) => {
                    jobs.push(job);
                    done += size;
                }
                Err(error) if slurm::is_limit_of_jobs(&error) && size > 1 => size /= 2,
                Err(error) if jobs.is_empty() => return Err(error),
                Err(error) => return Ok((done, Some(error))),
            }
        }
        Ok((done, None))
    }

    fn job<'s>(&'s self, points: &'s [usize], until: Option<u64>) -> BatchJob<'s> {
        let record = self.sweep.record();
        let word = |path: &Path| shell_word(&path.to_string_lossy()).into_owned();
        let until = until.map_or_else(String::new, |step| format!(" --until-step {step}"));
        let command =
            format!(r#"{} sweep point {} "$SLURM_ARRAY_TASK_ID"{until}"#, word(&self.program), word(&self.path));
        let needs = record.points.iter().filter(|point| points.contains(&point.index)).map(needs_of_point);
        BatchJob {
            settings: self.settings,
            id: &record.id,
            needs: needs.reduce(JobNeeds::max).unwrap_or_default(),
            threads: self.threads,
            command,
            output: &self.points,
            runs: &self.runs,
            array: Some(JobArray { points, parallel: self.parallel }),
        }
    }
}

fn needs_of_point(point: &PlannedPoint) -> JobNeeds {
    JobNeeds {
        ranks: point.ranks,
        nodes: 1,
        memory_bytes: point.memory_bytes,
        rank_memory_bytes: point.rank_memory_bytes,
        cuda_devices: point.cuda_devices,
        predicted_seconds: point.step_seconds.map(|seconds| seconds * point.steps as f64),
    }
}
