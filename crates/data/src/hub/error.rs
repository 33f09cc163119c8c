//! Errors of reading the hub.

use runner_spec::error::{Classified, ErrorKind};
use std::io;
use std::path::Path;

pub(super) use runner_spec::format::quoted_line as quoted;

/// The result of reading the hub, unless it names a different error.
pub(super) type Result<T, E = HubError> = std::result::Result<T, E>;

/// The reason why something on the hub cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The hub does not have what the experiment asks for, or refuses to give it.
    #[error("{0}")]
    Request(String),
    /// The hub cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// The cache lacks a file, and no requests may be sent.
    #[error("{0}")]
    Offline(String),
    /// An answer that makes no sense or is unsafe to follow, or a file that cannot be read or written.
    #[error("{0}")]
    Other(String),
}

impl HubError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Other(format!("{}: {}", path.display(), runner_files::explain_io_error(&source)))
    }

    /// Returns the error with another message.
    pub(super) fn reword(self, reword: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Request(message) => Self::Request(reword(message)),
            Self::Unreachable(message) => Self::Unreachable(reword(message)),
            Self::Offline(message) => Self::Offline(reword(message)),
            Self::Other(message) => Self::Other(reword(message)),
        }
    }

    /// True if the hub was not asked or did not answer.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Offline(_))
    }
}

impl Classified for HubError {
    /// A request, if the experiment or the environment must change.
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Request(_) | Self::Offline(_) => ErrorKind::Request,
            Self::Unreachable(_) | Self::Other(_) => ErrorKind::Failure,
        }
    }
}
