//! One rank's process, as the process that started it sees it.

use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, SyncSender, channel};

use super::cuda_environment;
use super::failure::FailureCause;
use super::protocol::{FromRank, RankStart, ToRank, describe_invalid_line, write_line};
use runner_files::{append_owned, create_owned_dir, explain_io_error};
use runner_record::run_dir::{RANKS, rank_log};
use runner_threads::{process, threads};

/// The output of a rank: lines of its standard output, and the end of that.
#[derive(Debug)]
pub(super) enum RankOutput {
    Message(Box<FromRank>),
    /// A line that is not a message, with the reason.
    InvalidLine(String),
    Closed,
}

/// A rank's process. When it is dropped, the process is killed.
#[derive(Debug)]
pub(super) struct ChildProcess {
    child: Child,
    status: Option<ExitStatus>,
    /// True once `kill` was called.
    was_killed: bool,
    /// The queue of the thread that writes to the process's standard input.
    messages: Sender<ToRank>,
    pub(super) log: PathBuf,
    /// The number of bytes in the log that earlier processes wrote.
    pub(super) log_from: u64,
}

impl ChildProcess {
    /// Starts rank `rank` of the run directory `run`, with the shared memory `memory`. Its messages go to `outputs`.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn start(
        rank: usize,
        run: &Path,
        memory: &OwnedFd,
        start: RankStart,
        outputs: SyncSender<(usize, RankOutput)>,
    ) -> io::Result<Self> {
        let folder = run.join(RANKS);
        let at = |path: &Path, error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {}", path.display(), explain_io_error(&error)))
        };
        create_owned_dir(&folder).map_err(|error| at(&folder, error))?;
        let log = folder.join(rank_log(rank));
        let errors = append_owned(&log).map_err(|error| at(&log, error))?;
        let log_from = errors.metadata()?.len();
        let memory = memory.as_raw_fd();
        let mut command = process::own_command()?;
        command.arg("rank").arg("--run").arg(run);
        command.args(["--rank", &rank.to_string(), "--fd", &memory.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        cuda_environment::set_for_child(&mut command, &start.program);
        process::prepare_rank_command(&mut command, memory);
        let mut child = command.spawn().map_err(|error| threads::explain_start_error("a process", &error))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (messages, queue) = channel();
        let process = Self { child, status: None, was_killed: false, messages, log, log_from };
        let (Some(mut input), Some(output)) = (input, output) else { return Err(io::ErrorKind::BrokenPipe.into()) };
        // Threads, because a process that is stopped neither reads nor writes.
        let write = move || {
            for message in queue {
                if write_line(&mut input, &message).is_err() {
                    break;
                }
            }
        };
        let read = move || {
            let mut output = BufReader::new(output);
            while let Some(line) = next_line(&mut output) {
                let message = match serde_json::from_slice(&line) {
                    Ok(message) => RankOutput::Message(Box::new(message)),
                    Err(_) => RankOutput::InvalidLine(describe_invalid_line(&line)),
                };
                if outputs.send((rank, message)).is_err() {
                    return;
                }
            }
            let _ = outputs.send((rank, RankOutput::Closed));
        };
        threads::spawn(&format!("to rank {rank}"), write)?;
        threads::spawn(&format!("rank {rank}"), read)?;
        process.send(ToRank::Start(Box::new(start)));
        Ok(process)
    }

    /// Sends a message. A process that has exited does not receive it.
    pub(super) fn send(&self, message: ToRank) {
        let _ = self.messages.send(message);
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// True if the process has exited. Then it is reaped.
    pub(super) fn has_exited(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status.is_some()
    }

    /// The cause for which the process exited, if it has.
    pub(super) fn exit_cause(&self) -> Option<FailureCause> {
        let status = self.status?;
        Some(match status.signal() {
            Some(signal) => FailureCause::Killed(runner_threads::signal::signal_name(signal)),
            None => FailureCause::Exited(status.code().unwrap_or(-1)),
        })
    }

    /// True if a signal ended the process that this program did not send.
    pub(super) fn was_killed_by_others(&self) -> bool {
        !self.was_killed && matches!(self.exit_cause(), Some(FailureCause::Killed(_)))
    }

    pub(super) fn kill(&mut self) {
        if self.status.is_none() {
            self.was_killed = true;
            let _ = self.child.kill();
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        if !self.has_exited() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The next line, without its end. A last line without an end was being written when the process was killed, and does not count.
fn next_line(output: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    output.read_until(b'\n', &mut line).ok()?;
    (line.pop() == Some(b'\n')).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_last_line_does_not_count() {
        let lines = |mut text: &[u8]| std::iter::from_fn(|| next_line(&mut text)).collect::<Vec<_>>();
        assert_eq!(lines(b"{\"a\":1}\n\n{\"b\":"), [b"{\"a\":1}".to_vec(), Vec::new()]);
        assert_eq!(lines(b"ab\ncd\n"), [b"ab", b"cd"]);
        assert!(lines(b"").is_empty());
    }
}
