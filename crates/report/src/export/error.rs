//! Errors of exporting metrics.

use std::io;
use std::path::{Path, PathBuf};

use runner_files::explain_io_error;
use runner_record::RecordError;

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("{} is there already: --force replaces it", path.display())]
    Exists { path: PathBuf },
    #[error("writing {}: {}", path.display(), explain_io_error(source))]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Store(#[from] RecordError),
}

impl ExportError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    /// True if the request was wrong, rather than the machine or the run.
    pub fn is_request(&self) -> bool {
        match self {
            Self::Exists { .. } => true,
            Self::Store(error) => error.is_request(),
            Self::Io { .. } => false,
        }
    }
}
