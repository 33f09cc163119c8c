//! One rank's process, as the one that started it sees it.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, SyncSender, channel};
use std::thread;

use super::death::How;
use super::gpus;
use super::message::{ToParent, ToRank, write};
use super::system;
use runner_store::run_dir::{RANKS, rank_log};

/// What comes from a rank's standard output.
#[derive(Debug)]
pub(super) enum Heard {
    Message(Box<ToParent>),
    /// A line that is no message.
    Garbled(String),
    Closed,
}

/// A process that was started; dropped, it is killed.
#[derive(Debug)]
pub(super) struct Process {
    child: process::Child,
    status: Option<ExitStatus>,
    /// To the thread that writes to its standard input.
    to: Sender<ToRank>,
    pub(super) log: PathBuf,
    /// Bytes of the log that are of earlier processes.
    pub(super) log_from: u64,
}

impl Process {
    /// Starts rank `rank` of the run directory `run`, with the region behind `fd`. What it says goes to `heard`.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn start(
        rank: usize,
        run: &Path,
        fd: &OwnedFd,
        start: ToRank,
        heard: SyncSender<(usize, Heard)>,
    ) -> io::Result<Self> {
        let folder = run.join(RANKS);
        fs::create_dir_all(&folder)?;
        let log = folder.join(rank_log(rank));
        let errors = OpenOptions::new().append(true).create(true).open(&log)?;
        let log_from = errors.metadata()?.len();
        let number = fd.as_raw_fd();
        let mut command = Command::new(program()?);
        command.arg0(std::env::current_exe()?).arg("rank").arg("--run").arg(run);
        command.args(["--rank", &rank.to_string(), "--fd", &number.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        if let ToRank::Start(start) = &start {
            gpus::tell(&mut command, &start.program);
        }
        system::as_rank(&mut command, number);
        let mut child = command.spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (to, messages) = channel();
        let process = Self { child, status: None, to, log, log_from };
        let (Some(mut input), Some(output)) = (input, output) else { return Err(io::ErrorKind::BrokenPipe.into()) };
        // Threads, because a process that is stopped neither reads nor writes.
        let speak = move || {
            for message in messages {
                if write(&mut input, &message).is_err() {
                    break;
                }
            }
        };
        let listen = move || {
            let mut output = BufReader::new(output);
            while let Some(line) = next_line(&mut output) {
                let message = match serde_json::from_slice(&line) {
                    Ok(message) => Heard::Message(Box::new(message)),
                    Err(_) => Heard::Garbled(String::from_utf8_lossy(&line).chars().take(200).collect()),
                };
                if heard.send((rank, message)).is_err() {
                    return;
                }
            }
            let _ = heard.send((rank, Heard::Closed));
        };
        thread::Builder::new().name(format!("to rank {rank}")).spawn(speak)?;
        thread::Builder::new().name(format!("rank {rank}")).spawn(listen)?;
        process.tell(start);
        Ok(process)
    }

    /// Sends a message; one that has ended does not get it.
    pub(super) fn tell(&self, message: ToRank) {
        let _ = self.to.send(message);
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended; then it is reaped.
    pub(super) fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status.is_some()
    }

    /// How it ended, if it has.
    pub(super) fn how(&self) -> Option<How> {
        let status = self.status?;
        Some(match status.signal() {
            Some(signal) => How::Killed(runner_machine::signal::signal_name(signal)),
            None => How::Exited(status.code().unwrap_or(-1)),
        })
    }

    pub(super) fn kill(&mut self) {
        if self.status.is_none() {
            let _ = self.child.kill();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The next line, without its end. A last one that has no end is what a process was writing when it was killed: none.
fn next_line(output: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    output.read_until(b'\n', &mut line).ok()?;
    (line.pop() == Some(b'\n')).then_some(line)
}

/// This very program, even if its file was replaced since it was started.
fn program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok(PathBuf::from("/proc/self/exe")) } else { std::env::current_exe() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_last_line_is_none() {
        let lines = |mut text: &[u8]| std::iter::from_fn(|| next_line(&mut text)).collect::<Vec<_>>();
        assert_eq!(lines(b"{\"a\":1}\n\n{\"b\":"), [b"{\"a\":1}".to_vec(), Vec::new()]);
        assert_eq!(lines(b"ab\ncd\n"), [b"ab", b"cd"]);
        assert!(lines(b"").is_empty());
    }
}
