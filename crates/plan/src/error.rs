//! The reasons why an experiment cannot be planned, in the experiment file's vocabulary and with the arithmetic that failed.

use std::borrow::Cow;

use crate::check::CheckError;
use runner_spec::error::{Classified, ErrorKind};

/// The result of planning, unless it names a different error.
pub(crate) type Result<T, E = PlanError> = std::result::Result<T, E>;

/// Mistakes in the request, except `Check`, which is a mistake of the planner.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The value of a key, alone or together with other values.
    #[error("{key}: {message}")]
    Value { key: Cow<'static, str>, message: String },
    #[error("the planned program is wrong (a bug in the planner): {0}")]
    Check(#[from] CheckError),
}

impl Classified for PlanError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Value { .. } => ErrorKind::Request,
            Self::Check(_) => ErrorKind::Failure,
        }
    }
}

impl PlanError {
    /// A mistake in the value of `key`.
    pub fn value(key: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::Value { key: key.into(), message: message.into() }
    }

    /// The mistake as one of the stage that `key` gives.
    #[must_use]
    pub(crate) fn in_stage(self, key: &str) -> Self {
        match self {
            Self::Value { key: part, message } => {
                Self::value(key.to_owned(), format!("in this stage, {part}: {message}"))
            }
            error @ Self::Check(_) => error,
        }
    }
}

/// Returns from the function with an error about a key's value.
macro_rules! refuse {
    ($key:expr, $($message:tt)+) => {
        return Err($crate::error::PlanError::value($key, format!($($message)+)))
    };
}
pub(crate) use refuse;
