//! Errors of run directories, with what to do about them.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use runner_files::explain_io_error;
use runner_spec::error::{Classified, CommandError, ErrorKind};

/// The reason why a run could not be recorded, read or found.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("{action} {}: {}", path.display(), ExplainedIoError(source))]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    /// A failed save. Earlier checkpoints are unchanged.
    #[error("saving checkpoint {name}: {cause}; {last_good}")]
    Save { name: String, cause: Box<RecordError>, last_good: String },
    /// A checkpoint that is cut short, altered, or another run's.
    #[error("checkpoint {}: {message}{fallback}", path.display())]
    Checkpoint { path: PathBuf, message: String, fallback: String },
    #[error("{}: {message}", path.display())]
    Damaged { path: PathBuf, message: String },
    #[error(
        "another process{holder} is working on run {id}; wait for it, or start a new run with `runner apply FILE --new`"
    )]
    Locked { id: String, holder: String },
    #[error(
        "{} is held by another process, which is starting this run; wait for it, or end it if it hangs",
        path.display()
    )]
    Busy { path: PathBuf },
    #[error("no run {wanted} in {}{known}", root.display())]
    NoSuchRun { wanted: String, root: PathBuf, known: String },
    /// A path that is not the folder of a run.
    #[error("{wanted} is not a run: {message}")]
    NotARun { wanted: String, message: String },
    #[error("{wanted} matches several runs: {}; use a longer prefix of the id", describe_candidates(candidates))]
    Ambiguous { wanted: String, candidates: Vec<String> },
    /// A refused request.
    #[error("{0}")]
    Refused(String),
    /// The receiver of a checkpoint's weights failed.
    #[error("{0}")]
    Receiver(CommandError),
    /// The system refuses threads.
    #[error("{0}")]
    Threads(#[source] io::Error),
    /// The numbers of a training state cannot be read from its tensors, or tensors cannot be made of them.
    #[error(transparent)]
    Tensor(Box<dyn std::error::Error + Send + Sync>),
}

impl RecordError {
    /// For `map_err`: the error of `action` on `path`.
    pub fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + 'a {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }

    pub fn damaged(path: &Path, message: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), message: message.into() }
    }

    /// True if several runs have a name.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Ambiguous { .. })
    }
}

impl Classified for RecordError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Locked { .. } | Self::Busy { .. } => ErrorKind::Busy,
            Self::NoSuchRun { .. } | Self::NotARun { .. } | Self::Ambiguous { .. } | Self::Refused(_) => {
                ErrorKind::Request
            }
            Self::Receiver(error) => error.kind(),
            _ => ErrorKind::Failure,
        }
    }
}

/// The first of `candidates`, and how many more there are.
fn describe_candidates(candidates: &[String]) -> String {
    const SHOWN: usize = 8;
    let more = candidates.len().saturating_sub(SHOWN);
    let shown = candidates[..candidates.len() - more].join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

/// An operating system's error with what it means here.
struct ExplainedIoError<'a>(&'a io::Error);

impl fmt::Display for ExplainedIoError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind() {
            io::ErrorKind::PermissionDenied => f.write_str(
                "permission denied; change the permissions of the file and its folder, or use a different folder \
                 (`--runs` sets the folder of runs)",
            ),
            io::ErrorKind::ReadOnlyFilesystem => {
                f.write_str("the file system is read-only; use a different folder (`--runs` sets the folder of runs)")
            }
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => f.write_str(
                "there is a file where a folder must be; use a different folder (`--runs` sets the \
                    folder of runs)",
            ),
            _ => f.write_str(&explain_io_error(self.0)),
        }
    }
}
