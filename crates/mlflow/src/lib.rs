//! Sends the record of a run to an MLflow server through its REST interface: parameters, metrics and tags.
//!
//! There is no queue. A thread reads the run's own record and sends what the server lacks: when a session starts, and after an error, the
//! server says which lines it has. A line counts as sent once the server has answered with a JSON object. So the training never waits for
//! the server, and neither a kill of the run nor one of the server loses or repeats a step. [`sender::Sender`] sends while the run trains,
//! [`upload::Upload`] sends what a finished run still has.

#![forbid(unsafe_code)]

mod client;
mod parameters;
pub mod sender;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
mod testing;
pub mod upload;

pub use client::{Credentials, MlflowError};
pub use sender::{SendOutcome, Sender};
pub use upload::{SentLines, Server, Upload};
