//! The executor: interprets a Program, emits events; prints nothing, writes nothing.

pub mod diagnose;
pub mod error;
pub mod event;
pub mod rank;
pub mod state;
pub mod step;

pub use error::ExecError;
pub use event::{EvalMetrics, Event, ObserveError, Observer, SampleText, StepMetrics};
pub use rank::{Outcome, Resources, run};
pub use state::{Best, TrainState};
pub use step::{Trainer, initial_state};
