//! The errors of requests to the engine.

use std::io;

use runner_comm::JoinError;
use runner_data::DataError;
use runner_data::hub::HubError;
use runner_exec::ExecError;
use runner_exec::eval::EvalError;
use runner_lab::compare::run_record::RunReadError;
use runner_launch::RankTokenError;
use runner_plan::PlanError;
use runner_record::RecordError;
use runner_spec::diagnostic::ConfigError;
use runner_weights::WeightsError;

use crate::run_error::RunError;
use crate::sweep::PointProblems;
use runner_spec::error::{Classified, ErrorKind};

/// The reason why the engine did not do what was requested.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The request is wrong, and would be wrong on any machine at any time.
    #[error("{0}")]
    Request(String),
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// Points of a sweep have mistakes.
    #[error("{0}")]
    Points(#[from] PointProblems),
    #[error("{0}")]
    Data(#[from] DataError),
    #[error("{0}")]
    Hub(#[from] HubError),
    #[error("{0}")]
    Plan(#[from] PlanError),
    #[error("{0}")]
    Weights(#[from] WeightsError),
    #[error("{0}")]
    Store(#[from] RecordError),
    #[error("{0}")]
    Record(#[from] RunReadError),
    #[error("{0}")]
    Exec(#[from] ExecError),
    #[error("{0}")]
    Eval(#[from] EvalError),
    #[error("{0}")]
    Token(#[from] RankTokenError),
    /// Ranks that a launcher started did not find each other, or do not agree.
    #[error("{0}")]
    Join(#[from] JoinError),
    #[error("{action}: {source}")]
    Io { action: String, source: io::Error },
    /// A run that had begun failed; `text` says which, and what to do next.
    #[error("{text}")]
    Run { text: String, source: Box<RunError> },
    /// `source`, explained by `text`.
    #[error("{text}")]
    Explained { text: String, source: Box<EngineError> },
    /// The message of another rank, or about a file that makes no sense.
    #[error("{0}")]
    Other(String),
}

impl From<RunError> for EngineError {
    fn from(source: RunError) -> Self {
        Self::Run { text: source.to_string(), source: Box::new(source) }
    }
}

impl EngineError {
    /// An error of input or output; `action` says what was attempted, such as `reading resolved.yaml`.
    pub fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }

    /// `self`, explained by `text`.
    #[must_use]
    pub fn explained(self, text: String) -> Self {
        Self::Explained { text, source: Box::new(self) }
    }
}

impl Classified for EngineError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Request(_) => ErrorKind::Request,
            Self::Config(error) => error.kind(),
            Self::Points(error) => error.kind(),
            Self::Data(error) => error.kind(),
            Self::Hub(error) => error.kind(),
            Self::Plan(error) => error.kind(),
            Self::Weights(error) => error.kind(),
            Self::Store(error) => error.kind(),
            Self::Record(error) => error.kind(),
            Self::Eval(error) => error.kind(),
            Self::Explained { source, .. } => source.kind(),
            Self::Run { source, .. } => source.kind(),
            Self::Token(error) => error.kind(),
            Self::Exec(_) | Self::Join(_) | Self::Io { .. } | Self::Other(_) => ErrorKind::Failure,
        }
    }

    fn report(&self, color: bool) -> Option<String> {
        match self {
            Self::Config(error) => error.report(color),
            Self::Points(error) => error.report(color),
            Self::Record(error) => error.report(color),
            _ => None,
        }
    }
}

