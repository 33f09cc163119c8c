//! What can be wrong with weights that others wrote.

use std::io;
use std::path::{Path, PathBuf};

/// An error of whoever hands weights out.
pub type Foreign = Box<dyn std::error::Error + Send + Sync>;

/// Why weights cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The content is not what it says, or not what can be used.
    #[error("{}: {message}", path.display())]
    File { path: PathBuf, message: String },
    /// What is asked for cannot be: the model, or a flag.
    #[error("{0}")]
    Request(String),
    /// What was to be written could not be handed out.
    #[error("{0}")]
    Source(#[source] Foreign),
}

impl WeightsError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    pub(super) fn file(path: &Path, message: impl Into<String>) -> Self {
        Self::File { path: path.to_owned(), message: message.into() }
    }

    /// Whether the request must change (exit code 2), rather than the machine (1).
    pub fn is_request(&self) -> bool {
        match self {
            Self::Io { source, .. } => matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
            Self::File { .. } | Self::Request(_) => true,
            // Its cause says.
            Self::Source(_) => false,
        }
    }
}
