//! Errors of data, in the terms of the experiment file.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use super::hub::HubError;
use runner_files::explain_io_error;
use runner_spec::error::{Classified, ErrorKind};

/// The result of work on data, unless it names a different error.
pub(crate) type Result<T, E = DataError> = std::result::Result<T, E>;

/// Why data cannot be prepared or read.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("{}: {}", path.display(), explain_io_error(source))]
    Io { path: PathBuf, source: io::Error },
    /// The file's content does not fit its role in the experiment.
    #[error("{}: {message}", path.display())]
    File { path: PathBuf, message: String },
    #[error("{}, line {line}: {message}", path.display())]
    Line { path: PathBuf, line: u64, message: String },
    #[error("{} changed while it was read; start again once nothing writes to it", path.display())]
    Changed { path: PathBuf },
    /// A setting of the experiment does not fit the other settings or the data.
    #[error("{key}: {message}")]
    Setting { key: Cow<'static, str>, message: String },
    /// The tokenizer has no tokens for a text, whose place is `context`.
    #[error("{context}: {message}")]
    Encode { context: String, message: String },
    #[error("{what}: token {token} at position {position} is beyond the vocabulary of {vocabulary} ({key})")]
    TokenBeyondVocabulary { what: String, token: u32, position: u64, vocabulary: usize, key: &'static str },
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The system refuses threads.
    #[error("{0}")]
    Threads(String),
    #[error("there is no row {row}: the data has {rows} rows")]
    NoSuchRow { row: u64, rows: u64 },
    /// A cache entry is cut short, or another program wrote it. Preparing again replaces it.
    #[error("{}: damaged cache entry: {message}", path.display())]
    Damaged { path: PathBuf, message: String },
}

impl DataError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    pub(super) fn file(path: &Path, message: impl Into<String>) -> Self {
        Self::File { path: path.to_owned(), message: message.into() }
    }

    /// The error of a text file whose byte at `offset` is the first that is not UTF-8.
    pub(super) fn not_utf8(path: &Path, offset: u64) -> Self {
        Self::file(path, format!("not UTF-8 text: the first bad byte is at offset {offset}"))
    }

    pub(super) fn damaged(path: &Path, message: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), message: message.into() }
    }

    pub(super) fn setting(key: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::Setting { key: key.into(), message: message.into() }
    }

    /// Names the place of the text that could not be encoded.
    #[must_use]
    pub(super) fn within(mut self, place: &str) -> Self {
        if let Self::Encode { context, .. } = &mut self {
            place.clone_into(context);
        }
        self
    }
}

impl Classified for DataError {
    /// A request, if the experiment or its input files must change.
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::InvalidInput => ErrorKind::Request,
                _ => ErrorKind::Failure,
            },
            Self::Hub(error) => error.kind(),
            Self::Changed { .. } | Self::Threads(_) | Self::NoSuchRow { .. } | Self::Damaged { .. } => {
                ErrorKind::Failure
            }
            _ => ErrorKind::Request,
        }
    }
}
