//! Evaluation of a model on its own: validation loss, multiple choice, samples.

pub mod choice;
pub mod loss;
pub mod sample;

pub use choice::ChoiceScore;
pub use loss::ValidationLoss;
pub use sample::{Continuation, generate};

/// What goes wrong in an evaluation.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    #[error(transparent)]
    Kernel(#[from] candle_core::Error),
    #[error(transparent)]
    Data(#[from] crate::data::DataError),
    #[error("{0}")]
    Request(String),
    #[error("the {0} is not finite")]
    NotFinite(&'static str),
}
