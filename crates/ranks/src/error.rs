//! The errors of ranks that this process starts or watches.

use runner_comm::CommError;
use runner_executor::ExecError;
use runner_spec::event::ObserveError;

use super::failure::{RankError, RankFailure};
use super::protocol::FailureKind;
use runner_spec::error::{Classified, CommandError, ErrorKind};
use runner_spec::exit::Exit;

/// The abort code for a number that is not finite. No process exits with it.
const NOT_FINITE: u8 = 64;

/// The reason why ranks did not reach their end.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The only rank failed.
    #[error("{0}")]
    Single(#[from] ExecError),
    /// One of several ranks failed, in this process.
    #[error(transparent)]
    Rank(#[from] RankError),
    /// A rank that is another process of this machine failed.
    #[error(transparent)]
    Process(Box<RankFailure>),
    /// A rank could not begin to train, such as without its data, its checkpoint or its process.
    #[error("{0}")]
    Start(#[from] CommandError),
    /// Another rank that a launcher started failed. `text` is its own, or that of the rank that noticed its loss.
    #[error("{text}")]
    OtherRank { code: u8, text: String },
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The record could not be written.
    #[error(transparent)]
    Record(#[from] ObserveError),
}

impl Classified for LaunchError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Start(error) => error.kind(),
            Self::Process(failure) if failure.reported() == Some(FailureKind::Request) => ErrorKind::Request,
            Self::OtherRank { code, .. } if *code == Exit::Request as u8 => ErrorKind::Request,
            _ => ErrorKind::Failure,
        }
    }
}

impl LaunchError {
    /// True if a number was not finite, so the same file would fail in the same way.
    pub fn is_not_finite(&self) -> bool {
        match self {
            Self::Single(error) | Self::Rank(RankError { source: error, .. }) => {
                matches!(error, ExecError::NotFinite { .. })
            }
            Self::Process(failure) => failure.reported() == Some(FailureKind::NotFinite),
            Self::OtherRank { code, .. } => *code == NOT_FINITE,
            _ => false,
        }
    }

    /// The failure of a rank's process that did not report an error itself, so that a restart may succeed.
    pub fn lost_rank(&self) -> Option<&RankFailure> {
        match self {
            Self::Process(failure) if failure.reported().is_none() => Some(failure),
            _ => None,
        }
    }

    /// True if another rank caused this error.
    pub(super) fn is_aborted(&self) -> bool {
        match self {
            Self::Comm(error) => error.is_aborted(),
            Self::Single(error) | Self::Rank(RankError { source: error, .. }) => error.is_aborted(),
            _ => false,
        }
    }

    /// The exit code for the other ranks that a launcher started.
    pub(super) fn code(&self) -> u8 {
        match self {
            Self::OtherRank { code, .. } => *code,
            _ if self.is_not_finite() => NOT_FINITE,
            _ => Exit::of_error(self.kind()) as u8,
        }
    }
}
