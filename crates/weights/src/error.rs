//! Errors of reading and writing weights.

use std::io;
use std::path::{Path, PathBuf};

use runner_files::explain_io_error;
use runner_spec::error::{Classified, CommandError, ErrorKind};

/// The reason why weights cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error("{}: {}", path.display(), describe_io_error(source))]
    Io { path: PathBuf, source: io::Error },
    /// The content of the file contradicts itself, or cannot be used.
    #[error("{}: {message}", path.display())]
    File { path: PathBuf, message: String },
    /// The requested model or flag is not possible.
    #[error("{0}")]
    Request(String),
    /// The source of the weights failed.
    #[error("{0}")]
    Source(CommandError),
}

/// An operating system's error, with what to do about it.
fn describe_io_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "permission denied; change its permissions, or use a different path".to_owned()
        }
        io::ErrorKind::ReadOnlyFilesystem => "the file system is read-only; use a different path".to_owned(),
        _ => explain_io_error(error),
    }
}

impl WeightsError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    pub(super) fn file(path: &Path, message: impl Into<String>) -> Self {
        Self::File { path: path.to_owned(), message: message.into() }
    }

    /// The error of a file that was read because it is beside the weights `weights`.
    pub(super) fn of_file_beside(self, weights: &Path) -> Self {
        match self {
            Self::File { path, message } => {
                let weights = weights.file_name().unwrap_or_default().display();
                Self::File { path, message: format!("{message} (it describes {weights} beside it)") }
            }
            other => other,
        }
    }

    /// The error for a file that an export would replace.
    pub(super) fn already_exists(path: &Path) -> Self {
        Self::Request(format!("{} already exists; use `--force` to replace it", path.display()))
    }

    /// The error for a path that should be a folder.
    pub(super) fn is_a_file(path: &Path) -> Self {
        Self::Request(format!("{} is a file; name a folder, or a different path", path.display()))
    }

    /// The failure `File`: the content of `path` is wrong.
    pub(super) fn invalid<T>(path: &Path, message: impl Into<String>) -> Result<T, Self> {
        Err(Self::file(path, message))
    }
}

impl Classified for WeightsError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ErrorKind::Request,
                _ => ErrorKind::Failure,
            },
            Self::File { .. } | Self::Request(_) => ErrorKind::Request,
            Self::Source(error) => error.kind(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_place_is_named_with_what_to_do() {
        let error = WeightsError::io(Path::new("/srv/models"))(io::ErrorKind::PermissionDenied.into());
        assert_eq!(
            error.to_string(),
            "/srv/models: permission denied; change its permissions, or use a different path"
        );
    }
}
