//! Slurm's commands: they submit scripts and show the queue.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use runner_spec::error::{CommandError, Result};
use runner_threads::threads;

/// The longest that a command of Slurm may take. They give up by themselves if the controller does not answer.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(5);

/// A job that waits or runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedJob {
    /// Its number; of a job in an array, with the number of the point.
    pub id: String,
    /// The number in its array, if it is in one.
    pub point: Option<usize>,
    pub is_pending: bool,
    /// True if Slurm has started it before.
    pub is_requeued: bool,
    /// The script that was submitted.
    pub script: PathBuf,
}

/// # Errors
/// If Slurm's commands are missing, so that nothing can be submitted.
pub fn check_commands() -> Result<()> {
    ["squeue", "sbatch"].into_iter().try_for_each(|name| {
        match output_within(Command::new(name).arg("--version"), COMMAND_TIMEOUT) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(not_installed(name)),
            Err(error) => Err(CommandError::io(name)(error)),
        }
    })
}

/// True if Slurm refused a submission because the user may not have so many jobs. Each job of an array counts.
#[must_use]
pub fn is_limit_of_jobs(error: &CommandError) -> bool {
    error.to_string().contains("Job violates accounting/QOS policy")
}

/// Submits `script`, and returns the number of the job.
///
/// # Errors
/// If Slurm's command is missing or refuses.
pub fn submit(script: &Path) -> Result<String> {
    let answer = run(Command::new("sbatch").arg("--parsable").arg(script), COMMAND_TIMEOUT)?;
    let answer = answer.ok_or_else(|| not_installed("sbatch"))?;
    // `--parsable` prints the number of the job, and on federations also `;` and the cluster.
    let job = answer.trim().split(';').next().unwrap_or_default().to_owned();
    if job.is_empty() || !job.bytes().all(|b| b.is_ascii_digit()) {
        return Err(CommandError::failure(format!("sbatch did not name the job that it created: {answer:?}")));
    }
    Ok(job)
}

/// The jobs of this user with the script `script`, whichever command submitted them.
///
/// # Errors
/// If Slurm does not report it: a queued job must not be submitted twice.
pub fn jobs_of_script(script: &Path) -> Result<Vec<QueuedJob>> {
    let mut jobs = queued_jobs(COMMAND_TIMEOUT)?.ok_or_else(|| not_installed("squeue"))?;
    jobs.retain(|job| job.script == script);
    Ok(jobs)
}

/// The jobs of this user that wait or run; `None` if Slurm's commands are not installed.
///
/// # Errors
/// If Slurm does not report them within `timeout`.
pub(crate) fn queued_jobs(timeout: Duration) -> Result<Option<Vec<QueuedJob>>> {
    // The widths leave a blank between columns. The path comes last, because it may have blanks.
    let columns = "--Format=JobArrayID:32,ArrayTaskID:32,StateCompact:8,RestartCnt:12,Command:4096";
    let queue = run(Command::new("squeue").args(["--me", "--noheader", "--array", columns]), timeout)?;
    Ok(queue.map(|queue| queue.lines().filter_map(parse_job).collect()))
}

/// Parses a line of the queue.
fn parse_job(line: &str) -> Option<QueuedJob> {
    let mut rest = line;
    let mut column = || {
        let (text, after) = rest.trim_start().split_once(' ')?;
        rest = after;
        Some(text)
    };
    let (id, point, state, restarts) = (column()?, column()?, column()?, column()?);
    Some(QueuedJob {
        id: id.to_owned(),
        // Jobs that are in no array have no number.
        point: point.parse().ok(),
        is_pending: state == "PD",
        is_requeued: restarts.parse().is_ok_and(|restarts: u64| restarts > 0),
        script: PathBuf::from(rest.trim()),
    })
}

fn not_installed(name: &str) -> CommandError {
    CommandError::request(format!(
        "there is no {name} on this machine; submit jobs where Slurm's commands are installed"
    ))
}

/// Runs a command of Slurm, and returns its output; `None` if it is not installed.
///
/// # Errors
/// If it fails, or takes longer than `timeout`.
fn run(command: &mut Command, timeout: Duration) -> Result<Option<String>> {
    let name = command.get_program().to_string_lossy().into_owned();
    match output_within(command, timeout) {
        Ok(Output { status, stdout, .. }) if status.success() => {
            Ok(Some(String::from_utf8_lossy(&stdout).into_owned()))
        }
        Ok(Output { stderr, .. }) => {
            Err(CommandError::failure(format!("{name}: {}", String::from_utf8_lossy(&stderr).trim())))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CommandError::io(name)(error)),
    }
}

/// The output of `command`, if it ends within `timeout`.
fn output_within(command: &mut Command, timeout: Duration) -> io::Result<Output> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (ended, output) = channel();
    threads::spawn("slurm", move || ended.send(child.wait_with_output()))?;
    output.recv_timeout(timeout).unwrap_or_else(|_| {
        Err(io::Error::new(ErrorKind::TimedOut, format!("no answer within {} s", timeout.as_secs())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_queue_is_a_job() {
        let job = |line: &str| parse_job(line).unwrap();
        let waiting = job("12_3      3      PD      0           /data/my runs/a-1/slurm.sh      ");
        assert_eq!(
            (waiting.id.as_str(), waiting.point, waiting.is_pending, waiting.is_requeued),
            ("12_3", Some(3), true, false)
        );
        assert_eq!(waiting.script, Path::new("/data/my runs/a-1/slurm.sh"));
        let again = job("7    N/A  PD 2 /a.sh");
        assert_eq!((again.point, again.is_pending, again.is_requeued), (None, true, true));
        assert!(!job("7 N/A R 0 /a.sh").is_pending);
        assert!(parse_job("").is_none() && parse_job("7 N/A R").is_none());
    }

    #[test]
    fn a_command_that_hangs_is_not_waited_for() {
        let error = run(Command::new("sleep").arg("60"), Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains("sleep: no answer within 0 s"), "{error}");
        assert!(run(&mut Command::new("no-such-command-of-slurm"), COMMAND_TIMEOUT).unwrap().is_none());
    }
}
