//! Why a run that had begun did not reach its end.

use std::error::Error;
use std::fmt;

use runner_exec::ExecError;
use runner_store::StoreError;

use crate::error::EngineError;
use crate::launch::{MemberError, ProcessError, RankError};

/// Why a run that had begun did not reach its end.
#[derive(Debug)]
pub enum RunError {
    /// The only rank, in this process, failed.
    Single(Box<ExecError>),
    /// A rank that is a thread of this process failed.
    Thread(Box<RankError>),
    /// A rank that is a process on this machine failed.
    Process(ProcessError),
    /// A rank that a launcher started failed.
    Member(MemberError),
    /// A restart would repeat the same failure: twice in a row the ranks came no further and saved nothing.
    Repeated(ProcessError),
    /// The best checkpoint could not be tested (`eval.test`).
    Test(Box<EngineError>),
    /// The record could not be opened again for a restart.
    Store(StoreError),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(error) => error.fmt(f),
            Self::Thread(error) => error.fmt(f),
            Self::Process(error) => error.fmt(f),
            Self::Member(error) => error.fmt(f),
            Self::Repeated(error) => {
                write!(
                    f,
                    "{error}; twice in a row the ranks came no further and saved nothing, so they are not restarted"
                )
            }
            Self::Test(error) => write!(f, "eval.test: {}", crate::error::error_text(error.as_ref())),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl Error for RunError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(match self {
            Self::Single(error) => error.as_ref(),
            Self::Thread(error) => error.source.as_ref(),
            Self::Process(error) | Self::Repeated(error) => error,
            Self::Member(error) => error,
            Self::Test(error) => error.as_ref(),
            Self::Store(error) => error,
        })
    }
}

impl From<ExecError> for RunError {
    fn from(error: ExecError) -> Self {
        Self::Single(Box::new(error))
    }
}

impl From<RankError> for RunError {
    fn from(error: RankError) -> Self {
        Self::Thread(Box::new(error))
    }
}

impl From<ProcessError> for RunError {
    fn from(error: ProcessError) -> Self {
        Self::Process(error)
    }
}

impl From<MemberError> for RunError {
    fn from(error: MemberError) -> Self {
        Self::Member(error)
    }
}

impl From<StoreError> for RunError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl RunError {
    /// The executor's error, of a rank in this process.
    fn exec_error(&self) -> Option<&ExecError> {
        match self {
            Self::Single(error) => Some(error),
            Self::Thread(error) => Some(&error.source),
            _ => None,
        }
    }

    /// True if a number was not finite, so the same file would fail in the same way.
    #[must_use]
    pub fn is_not_finite(&self) -> bool {
        match self {
            Self::Process(error) => error.not_finite(),
            Self::Member(error) => error.not_finite(),
            _ => matches!(self.exec_error(), Some(ExecError::NotFinite { .. })),
        }
    }

    /// True if the record could not be written. Such an error says itself what is left of the run.
    #[must_use]
    pub fn is_from_record(&self) -> bool {
        match self {
            Self::Process(error) => matches!(error, ProcessError::Record(_)),
            Self::Member(error) => matches!(error, MemberError::Record(_)),
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
