//! How the work on a run ended, where it did not fail.

use std::path::PathBuf;

/// How the work on a run ended, where it did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunOutcome {
    /// All steps are done.
    Done,
    /// All steps were done before: nothing was begun.
    UpToDate,
    /// Stopped on request, with a checkpoint.
    Interrupted,
    /// Stopped after the step that was asked for, with a checkpoint.
    StoppedAt(u64),
    /// The run has this many steps already, as many as were asked for or more: nothing was begun.
    AlreadyAt(u64),
    /// This process was a rank that keeps no record; the job ended with this exit code.
    Followed(u8),
}

/// Exit codes of the program, which ranks on several machines tell each other.
pub mod exit_code {
    pub const DONE: u8 = 0;
    pub const FAILED: u8 = 1;
    pub const REQUEST: u8 = 2;
    pub const INTERRUPTED: u8 = 130;
}

impl RunOutcome {
    /// The program's exit code for it.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Done | Self::UpToDate | Self::StoppedAt(_) | Self::AlreadyAt(_) => exit_code::DONE,
            Self::Interrupted => exit_code::INTERRUPTED,
            // Codes of other programs, and of sweeps, mean nothing here.
            Self::Followed(code) => match code {
                exit_code::DONE | exit_code::REQUEST | exit_code::INTERRUPTED => code,
                _ => exit_code::FAILED,
            },
        }
    }
}

/// What came of the work on a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunReport {
    pub outcome: RunOutcome,
    /// The run directory; `None` in a rank that keeps no record.
    pub run: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_codes_of_other_ranks_are_failures() {
        let codes = [0, 1, 2, 64, 130].map(|code| RunOutcome::Followed(code).exit_code());
        assert_eq!(codes, [0, 1, 2, 1, 130]);
    }
}
