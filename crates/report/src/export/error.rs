//! Errors of exporting metrics.

use std::io;
use std::path::{Path, PathBuf};

use runner_files::explain_io_error;
use runner_record::RecordError;
use runner_spec::error::{Classified, ErrorKind};

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
}

impl Classified for ExportError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Exists { .. } => ErrorKind::Request,
            Self::Store(error) => error.kind(),
            Self::Io { .. } => ErrorKind::Failure,
        }
    }
}
