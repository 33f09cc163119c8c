//! The errors of runs that had started, and whether the ranks restart after the loss of one of them.

use runner_launch::LaunchError;
use runner_record::RecordError;

use runner_spec::error::{Classified, CommandError, ErrorKind};

/// The reason why a run that had started did not reach its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A rank failed, or could not be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A restart would repeat the same failure: twice in a row the ranks came no further and saved nothing.
    #[error(
        "{0}; the ranks failed twice in a row without reaching a later step or saving a checkpoint, so they are \
        not restarted"
    )]
    Repeated(#[source] LaunchError),
    /// The best checkpoint could not be tested (`eval.test`).
    #[error("eval.test: {0}")]
    Test(#[source] Box<CommandError>),
    /// The record could not be opened again for a restart.
    #[error("{0}")]
    Store(#[from] RecordError),
}

impl RunError {
    /// True if a number was not finite, so the same file would fail in the same way.
    pub fn is_not_finite(&self) -> bool {
        matches!(self, Self::Launch(error) if error.is_not_finite())
    }
}

impl Classified for RunError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Launch(error) => error.kind(),
            // The request was right: the run trained.
            Self::Repeated(_) | Self::Test(_) | Self::Store(_) => ErrorKind::Failure,
        }
    }
}

/// The progress of the ranks between a start and the exit of one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttemptProgress {
    /// The step of the checkpoint that the ranks began with; 0: none.
    pub from: u64,
    /// The step of the newest checkpoint at the end.
    pub saved: u64,
    /// The step, from 0, in which the rank exited.
    pub exited_in: u64,
}

impl AttemptProgress {
    /// True if this attempt went like the one before: neither saved anything, and this one came no further. A third attempt would fail
    /// in the same way, because what kills ranks from outside comes at another step each time.
    pub(crate) fn repeats(&self, before: &Self) -> bool {
        let nothing_saved = |attempt: &Self| attempt.saved <= attempt.from;
        nothing_saved(before) && nothing_saved(self) && self.exited_in <= before.exited_in
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_exits_at_the_same_step_are_enough() {
        let attempt = |from, saved, exited_in| AttemptProgress { from, saved, exited_in };
        let repeats = |a: AttemptProgress, b: AttemptProgress| b.repeats(&a);
        assert!(repeats(attempt(10, 10, 15), attempt(10, 10, 15)));
        assert!(repeats(attempt(10, 10, 15), attempt(10, 10, 12)), "earlier");
        assert!(repeats(attempt(0, 0, 0), attempt(0, 0, 0)), "while starting");
        assert!(!repeats(attempt(10, 10, 15), attempt(10, 10, 16)), "further");
        assert!(!repeats(attempt(0, 10, 15), attempt(10, 10, 15)), "the first one saved");
        assert!(!repeats(attempt(10, 10, 25), attempt(10, 20, 25)), "this one saved");
    }
}
