//! Errors of making or serving a report.

use std::fmt::Display;

use runner_record::{RecordError, files};
use runner_spec::error::{Classified, ErrorKind};

#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error(transparent)]
    Store(#[from] RecordError),
    #[error("the page's template: {0}")]
    Template(#[from] minijinja::Error),
    #[error("the page's data: {0}")]
    Json(#[from] serde_json::Error),
    #[error("listening on 127.0.0.1:{port}: {source}")]
    Listen { port: u16, source: std::io::Error },
    #[error("serving the report: {0}")]
    Serve(std::io::Error),
}

/// The value of `result`, or the default of its type and an entry in `problems`.
pub(super) fn or_problem<T: Default>(result: Result<T, impl Display>, problems: &mut Vec<String>) -> T {
    result.unwrap_or_else(|error| {
        problems.push(error.to_string());
        T::default()
    })
}

/// The content of a file; `None` if there is no file, or if it cannot be read, which goes to `problems`.
pub(super) fn if_present<T>(content: Result<T, RecordError>, problems: &mut Vec<String>) -> Option<T> {
    or_problem(files::if_present(content), problems)
}

impl Classified for ReportError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(error) => error.kind(),
            Self::Template(_) | Self::Json(_) | Self::Listen { .. } | Self::Serve(_) => ErrorKind::Failure,
        }
    }
}
