//! The exit codes of commands.

use std::process::ExitCode;

use super::error::ErrorKind;

/// The documented exit codes, which ranks on several machines also send to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    /// The run, or the machine, failed.
    Failed = 1,
    /// The request was wrong: the file, the flags, the name of a run.
    Request = 2,
    /// A command that compares found differences; or a sweep's points are done, and were made before its files changed.
    Differ = 3,
    /// The same command continues later (EX_TEMPFAIL, which schedulers requeue): a notice (SIGTERM, SIGUSR1) stopped it, or another process
    /// works on the run of a sweep's point.
    TryAgain = 75,
    /// Stopped by Ctrl-C or SIGHUP.
    Interrupted = 130,
}

impl Exit {
    /// The exit code of a command that ends with an error of this kind.
    #[must_use]
    pub fn of_error(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Request | ErrorKind::Busy => Self::Request,
            ErrorKind::Failure => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
