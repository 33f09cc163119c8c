//! Errors of making or serving a report.

use runner_record::RecordError;

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
