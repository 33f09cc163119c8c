//! Evaluation of a model on its own: validation loss, multiple choice, samples.

pub mod batches;
pub mod choice;
pub mod decode;
pub mod loss;
pub mod sample;

pub use batches::{Batches, Partial, share};
pub use choice::{ChoiceBatches, ChoiceScore};
pub use decode::{Decoder, Feed, StageDecoder, WholeDecoder};
pub use loss::{LossBatches, ValidationLoss};
pub use sample::{Continuation, generate, generate_with};

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
