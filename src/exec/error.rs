//! Why a run stopped.

use super::event::ObserveError;
use crate::data::DataError;
use crate::eval::EvalError;

/// What the executor can fail with.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error(transparent)]
    Kernel(#[from] candle_core::Error),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Eval(#[from] EvalError),
    #[error(transparent)]
    Observer(#[from] ObserveError),
    /// A number that is infinite or not a number; `first` is where it appeared first.
    #[error("step {step}: the {what} is not finite; first bad: {first}")]
    NotFinite { step: u64, what: &'static str, first: String },
    #[error("the program cannot run: {0}")]
    Program(String),
}
