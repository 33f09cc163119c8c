//! The errors of runs that had started.

use runner_ranks::LaunchError;
use runner_record::RecordError;

use crate::restarts::REPEATED;
use runner_spec::error::{Classified, CommandError, ErrorKind};

/// The reason why a run that had started did not reach its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A rank failed, or could not be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A restart would repeat the same failure: twice in a row the ranks came no further and saved nothing.
    #[error("{0}; {REPEATED}")]
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
