//! The errors of evaluations.

use runner_spec::error::{Classified, ErrorKind};

/// An error in an evaluation.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    #[error(transparent)]
    Kernel(#[from] candle_core::Error),
    #[error(transparent)]
    Data(#[from] runner_data::DataError),
    #[error(transparent)]
    Peer(#[from] runner_comm::CommError),
    #[error("{0}")]
    Request(String),
    #[error("the {0} is not finite")]
    NotFinite(&'static str),
}

impl Classified for EvalError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Data(error) => error.kind(),
            Self::Request(_) => ErrorKind::Request,
            Self::Kernel(_) | Self::Peer(_) | Self::NotFinite(_) => ErrorKind::Failure,
        }
    }
}
