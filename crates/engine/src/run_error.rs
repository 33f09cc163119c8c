//! The errors of runs that had begun.

use runner_exec::ExecError;
use runner_store::StoreError;

use crate::error::{EngineError, error_text};
use crate::launch::{LaunchedError, ProcessError, RankError};

/// The reason why a run that had begun did not reach its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The only rank, in this process, failed.
    #[error("{0}")]
    Single(#[from] ExecError),
    /// A rank that is a thread of this process failed.
    #[error(transparent)]
    Thread(#[from] RankError),
    /// A rank that is a process of this machine failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A rank that a launcher started failed.
    #[error(transparent)]
    Launched(#[from] LaunchedError),
    /// A restart would repeat the same failure: twice in a row the ranks came no further and saved nothing.
    #[error("{0}; twice in a row the ranks came no further and saved nothing, so they are not restarted")]
    Repeated(#[source] ProcessError),
    /// The best checkpoint could not be tested (`eval.test`).
    #[error("eval.test: {}", error_text(.0.as_ref()))]
    Test(#[source] Box<EngineError>),
    /// A checkpoint could not be read, or the record could not be opened again for a restart.
    #[error("{0}")]
    Store(#[from] StoreError),
}

impl RunError {
    /// The executor's error, of a rank in this process.
    fn exec_error(&self) -> Option<&ExecError> {
        match self {
            Self::Single(error) | Self::Thread(RankError { source: error, .. }) => Some(error),
            _ => None,
        }
    }

    /// True if a number was not finite, so the same file would fail in the same way.
    #[must_use]
    pub fn is_not_finite(&self) -> bool {
        match self {
            Self::Process(error) => error.is_not_finite(),
            Self::Launched(error) => error.is_not_finite(),
            _ => matches!(self.exec_error(), Some(ExecError::NotFinite { .. })),
        }
    }

    /// True if the record could not be written. Such an error says itself what is left of the run.
    #[must_use]
    pub fn is_from_record(&self) -> bool {
        match self {
            Self::Process(error) => matches!(error, ProcessError::Record(_)),
            Self::Launched(error) => matches!(error, LaunchedError::Record(_)),
            Self::Store(_) => true,
            _ => matches!(self.exec_error(), Some(ExecError::Observer(_))),
        }
    }

    /// True if what failed was asked for wrongly.
    pub(crate) fn is_request(&self) -> bool {
        match self {
            Self::Test(error) => error.is_request(),
            Self::Store(error) => error.is_request(),
            _ => false,
        }
    }
}
