//! Slurm's commands: they submit scripts and show the queue.

use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use runner_spec::error::{CommandError, Result};
use runner_spec::format::duration;
use runner_threads::threads;

/// Slurm's default of `MaxArraySize`: one more than the largest number of a job in an array.
const DEFAULT_MAX_ARRAY_SIZE: usize = 1001;

/// The longest that a command of Slurm may take. They give up by themselves if the controller does not answer.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(5);

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A command that takes longer than this is reported, and again after each such time.
const NOTICED_WAIT: Duration = if cfg!(test) { Duration::from_millis(100) } else { Duration::from_secs(10) };

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
        match output_within(Command::new(name).arg("--version"), COMMAND_TIMEOUT, &|_, _| {}) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(not_installed(name)),
            Err(error) => Err(CommandError::io(name)(error)),
        }
    })
}

/// # Errors
/// If the number `last` of a point is larger than Slurm allows for a job of an array.
pub fn check_array_size(last: usize) -> Result<()> {
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
    let config = run(Command::new("scontrol").args(["show", "config"]), COMMAND_TIMEOUT).ok()??;
    let mut settings = config.lines().filter_map(|line| line.split_once('='));
    settings.find(|(name, _)| name.trim() == "MaxArraySize")?.1.trim().parse().ok()
}

/// True if Slurm refused a submission because the user may not have so many jobs. Each job of an array counts.
#[must_use]
pub fn is_limit_of_jobs(error: &CommandError) -> bool {
    error.to_string().contains("Job violates accounting/QOS policy")
}

/// Submits `script`, and returns the number of the job. If Slurm takes long, as with a full queue, `report` receives what it waits for.
///
/// # Errors
/// If Slurm's command is missing or refuses.
pub(crate) fn submit(script: &Path, report: &dyn Fn(&str)) -> Result<String> {
    let answer = run_reported(Command::new("sbatch").arg("--parsable").arg(script), COMMAND_TIMEOUT, report)?;
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
    run_reported(command, timeout, &|_| {})
}

/// [`run`], in which `report` receives from time to time that the command has not ended, and its last line of errors.
fn run_reported(command: &mut Command, timeout: Duration, report: &dyn Fn(&str)) -> Result<Option<String>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let waits = |waited: Duration, said: &str| {
        let said = if said.is_empty() { String::new() } else { format!("; it says: {said}") };
        report(&format!("waiting for {name} for {}{said}", duration(waited)));
    };
    match output_within(command, timeout, &waits) {
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

/// The output of `command`, which is killed after `timeout`. `waits` receives from time to time how long it has run, and its last line of errors.
fn output_within(command: &mut Command, timeout: Duration, waits: &dyn Fn(Duration, &str)) -> io::Result<Output> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (stdout, stderr) = (PipeReader::start(child.stdout.take())?, PipeReader::start(child.stderr.take())?);
    let (started, mut reported) = (Instant::now(), Duration::ZERO);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let waited = started.elapsed();
        if waited > timeout {
            child.kill()?;
            child.wait()?;
            let said = stderr.last_line();
            let said = if said.is_empty() { said } else { format!("; it said: {said}") };
            return Err(io::Error::new(ErrorKind::TimedOut, format!("no answer within {} s{said}", timeout.as_secs())));
        }
        if waited > reported + NOTICED_WAIT {
            reported = waited;
            waits(waited, &stderr.last_line());
        }
        thread::sleep(POLL_INTERVAL);
    };
    Ok(Output { status, stdout: stdout.all()?, stderr: stderr.all()? })
}

/// A thread that reads what a command writes.
struct PipeReader {
    read: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<io::Result<()>>,
}

impl PipeReader {
    fn start(pipe: Option<impl Read + Send + 'static>) -> io::Result<Self> {
        let read = Arc::new(Mutex::new(Vec::new()));
        let out = Arc::clone(&read);
        let thread = threads::spawn("slurm", move || {
            let Some(mut pipe) = pipe else { return Ok(()) };
            let mut block = [0; 4096];
            loop {
                match pipe.read(&mut block)? {
                    0 => return Ok(()),
                    bytes => lock(&out).extend_from_slice(&block[..bytes]),
                }
            }
        })?;
        Ok(Self { read, thread })
    }

    fn last_line(&self) -> String {
        String::from_utf8_lossy(&lock(&self.read)).trim().lines().next_back().unwrap_or_default().to_owned()
    }

    /// All that the command has written, once it has ended.
    fn all(self) -> io::Result<Vec<u8>> {
        let joined = self.thread.join();
        joined.unwrap_or_else(|_| Err(io::Error::other("the thread that reads its output panicked")))?;
        Ok(std::mem::take(&mut *lock(&self.read)))
    }
}

fn lock(bytes: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn a_command_that_hangs_is_ended() {
        let error = run(Command::new("sleep").arg("60"), Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains("sleep: no answer within 0 s"), "{error}");
        let mut says = Command::new("sh");
        says.args(["-c", "echo the queue is full >&2; exec sleep 60"]);
        let reported = Mutex::new(Vec::new());
        let report = |text: &str| reported.lock().unwrap().push(text.to_owned());
        let error = run_reported(&mut says, Duration::from_millis(900), &report).unwrap_err().to_string();
        assert!(error.contains("no answer within 0 s; it said: the queue is full"), "{error}");
        let reported = reported.into_inner().unwrap().join("\n");
        assert!(
            reported.contains("waiting for sh for 0.") && reported.contains("s; it says: the queue is full"),
            "{reported}"
        );
        assert!(run(&mut Command::new("no-such-command-of-slurm"), COMMAND_TIMEOUT).unwrap().is_none());
    }
}
