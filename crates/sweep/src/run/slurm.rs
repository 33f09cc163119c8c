//! Submits the points of a sweep to Slurm as an array of jobs, one for each point.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::progress::SweepProgress;
use crate::record::{PlannedPoint, SweepRecord};
use crate::sweep_dir::{SweepDir, absolute_path};
use runner_record::catalog::SWEEP_SCRIPT;

use super::request::SweepRequest;
use super::slurm_script::SlurmArray;
pub use super::slurm_script::TEMPLATE;
use runner_prepare::Host;
use runner_spec::error::{CommandError, Result};

/// Slurm's default of `MaxArraySize`: one more than the largest number of a job in an array.
const DEFAULT_MAX_ARRAY_SIZE: usize = 1001;

/// The result of a submission.
#[derive(Debug)]
pub enum Submission {
    /// The number of points that are queued or running; all others are done.
    NothingToSubmit { queued_or_running: usize },
    /// The number of submitted points, the number of the job, and its script.
    Submitted { points: usize, job: String, script: PathBuf },
}

/// # Errors
/// If the sweep decides on points while others run, or an option cannot be a line of a script.
pub(super) fn check_request(has_early_stop: bool, options: &[String]) -> Result<()> {
    if has_early_stop {
        return Err(CommandError::request(
            "early_stop decides after each point which ones continue; use `--launcher local`, or remove early_stop",
        ));
    }
    match options.iter().find(|o| !o.starts_with("--") || o.contains(char::is_control)) {
        Some(bad) => Err(CommandError::request(format!(
            "--slurm-option must be an option of sbatch, such as --partition=long, got {bad:?}"
        ))),
        None => Ok(()),
    }
}

/// # Errors
/// If Slurm's commands are missing, so that nothing can be submitted.
pub(super) fn check_commands() -> Result<()> {
    ["squeue", "sbatch"].iter().try_for_each(|name| slurm_output(Command::new(name).arg("--version")).map(drop))
}

/// # Errors
/// If the number of a point is larger than Slurm allows for a job of an array.
pub(super) fn check_array_size(record: &SweepRecord) -> Result<()> {
    let last = record.points.iter().filter(|p| p.same_as.is_none()).map(|p| p.index).max().unwrap_or(0);
    // Every Slurm allows as many as the default, so it is not asked then.
    let limit = if last < DEFAULT_MAX_ARRAY_SIZE { None } else { configured_max_array_size() };
    let limit = limit.unwrap_or(DEFAULT_MAX_ARRAY_SIZE);
    if last < limit {
        return Ok(());
    }
    Err(CommandError::request(format!(
        "jobs of an array have numbers up to {} here (MaxArraySize in slurm.conf), but the last point is {last}; \
         split it into several sweeps",
        limit - 1
    )))
}

/// Slurm's setting; `None` if Slurm does not report it, as on a machine without `scontrol`.
fn configured_max_array_size() -> Option<usize> {
    let config = run_slurm(Command::new("scontrol").args(["show", "config"])).ok()?;
    let mut settings = config.lines().filter_map(|line| line.split_once('='));
    settings.find(|(name, _)| name.trim() == "MaxArraySize")?.1.trim().parse().ok()
}

/// Submits the points of `sweep` that are neither finished nor queued or running already. The batch script is made from `template`, or
/// else from the built-in one.
///
/// # Errors
/// If Slurm's commands are missing or refuse, or the script's template has a mistake.
pub fn submit_sweep(
    sweep: &SweepDir,
    request: &SweepRequest<'_>,
    host: &Host,
    options: &[String],
    template: Option<&str>,
) -> Result<Submission> {
    let record = sweep.record();
    let program = std::env::current_exe().map_err(CommandError::io("this program's file"))?;
    let path = absolute_path(sweep.path());
    // The queue is read first: a point that ends in between is then finished, and is in neither list.
    let queued = queued_points(&path.join(SWEEP_SCRIPT))?;
    let open = unfinished_points(&host.runs, record);
    let points: Vec<usize> = open.iter().copied().filter(|point| !queued.contains(point)).collect();
    if points.is_empty() {
        return Ok(Submission::NothingToSubmit { queued_or_running: open.len() });
    }
    let array = SlurmArray {
        program: &program,
        sweep: &path,
        points: &points,
        parallel: request.parallel,
        threads: request.threads,
        options,
    };
    sweep.write_script(&array.script(record, template)?)?;
    let script = path.join(SWEEP_SCRIPT);
    let answer = run_slurm(Command::new("sbatch").arg("--parsable").arg(&script))?;
    // `--parsable` prints the number of the job, and on federations also `;` and the cluster.
    let job = answer.trim().split(';').next().unwrap_or_default().to_owned();
    if job.is_empty() || !job.bytes().all(|b| b.is_ascii_digit()) {
        return Err(CommandError::failure(format!("sbatch did not name the job that it created: {answer:?}")));
    }
    Ok(Submission::Submitted { points: points.len(), job, script })
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

/// The points that wait or run in arrays of this user with the script `script`, whichever call submitted them.
///
/// # Errors
/// If Slurm does not report it: a queued point must not be submitted twice.
fn queued_points(script: &Path) -> Result<Vec<usize>> {
    let queue = run_slurm(Command::new("squeue").args(["--me", "--noheader", "--array", "--format=%K %o"]))?;
    let script = script.to_string_lossy();
    let jobs = queue.lines().filter_map(|line| line.trim().split_once(' '));
    // Jobs that are in no array have no number.
    Ok(jobs.filter(|(_, of)| of.trim() == script).filter_map(|(point, _)| point.parse().ok()).collect())
}

/// Runs one of Slurm's commands, and returns its output.
fn run_slurm(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } = slurm_output(command)?;
    if !status.success() {
        let name = command.get_program().to_string_lossy();
        return Err(CommandError::failure(format!("{name}: {}", String::from_utf8_lossy(&stderr).trim())));
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// Runs one of Slurm's commands, whether it succeeds or not.
fn slurm_output(command: &mut Command) -> Result<Output> {
    command.output().map_err(|error| {
        let name = command.get_program().to_string_lossy().into_owned();
        match error.kind() {
            ErrorKind::NotFound => CommandError::request(format!(
                "there is no {name} on this machine; submit jobs where Slurm's \
                    commands are installed"
            )),
            _ => CommandError::io(name)(error),
        }
    })
}
