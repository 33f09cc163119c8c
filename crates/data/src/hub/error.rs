//! What can go wrong between here and the hub.

use std::io;
use std::path::{Path, PathBuf};

/// Why something of the hub is not there.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// What the experiment asks for is not there, or not for us.
    #[error("{0}")]
    Request(String),
    /// The hub, or the way to it.
    #[error("{0}")]
    Unreachable(String),
    /// An answer that is none, or that means harm.
    #[error("{what}: {message}")]
    Answer { what: String, message: String },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl HubError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    /// Whether the experiment or the environment must change (exit code 2), rather than the network or the machine.
    #[must_use]
    pub fn is_request(&self) -> bool {
        matches!(self, Self::Request(_))
    }
}

/// Text of somebody else's, for a message: one line, without control characters, not too long.
pub(super) fn quoted(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
    plain.trim().to_owned()
}
