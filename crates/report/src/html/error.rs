//! Errors of making or serving a report.

use runner_record::RecordError;
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

impl Classified for ReportError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(error) => error.kind(),
            Self::Template(_) | Self::Json(_) | Self::Listen { .. } | Self::Serve(_) => ErrorKind::Failure,
        }
    }
}
