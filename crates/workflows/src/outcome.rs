//! Outcomes of the work on a run that did not fail.

use std::path::PathBuf;

use runner_spec::exit::Exit;
use runner_threads::stop::StopReason;

/// The outcome of the work on a run that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunOutcome {
    /// All steps are done.
    Done,
    /// All steps were done before: nothing was started.
    UpToDate,
    /// Stopped on request, with a checkpoint.
    Interrupted(StopReason),
    /// Stopped after the step that was asked for, with a checkpoint.
    StoppedAt(u64),
    /// The run has this many steps already, as many as were asked for or more: nothing was started.
    AlreadyAt(u64),
    /// This process was a rank that keeps no record; the job ended with this exit code.
    Followed(u8),
}

impl RunOutcome {
    /// The exit code of the program.
    pub fn exit(self) -> Exit {
        match self {
            Self::Done | Self::UpToDate | Self::StoppedAt(_) | Self::AlreadyAt(_) => Exit::Done,
            Self::Interrupted(reason) => reason.exit(),
            // Codes of other programs, and of sweeps, mean nothing here.
            Self::Followed(code) => [Exit::Done, Exit::Request, Exit::TryAgain, Exit::Interrupted]
                .into_iter()
                .find(|exit| *exit as u8 == code)
                .unwrap_or(Exit::Failed),
        }
    }
}

/// The outcome of the work on a run, and its folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunReport {
    pub outcome: RunOutcome,
    /// The run directory; `None` in a rank that keeps no record.
    pub run: Option<PathBuf>,
}

impl RunReport {
    /// The run in `path` was done before.
    pub(crate) fn up_to_date(path: PathBuf) -> Self {
        Self { outcome: RunOutcome::UpToDate, run: Some(path) }
    }

    /// The job whose record another rank keeps ended with the exit code `code`.
    pub(crate) fn followed(code: u8) -> Self {
        Self { outcome: RunOutcome::Followed(code), run: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_codes_of_other_ranks_are_failures() {
        let codes = [0, 1, 2, 64, 75, 130].map(|code| RunOutcome::Followed(code).exit() as u8);
        assert_eq!(codes, [0, 1, 2, 1, 75, 130]);
    }
}
