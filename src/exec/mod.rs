//! The executor: interprets a Program, emits events; prints nothing, writes nothing.

pub mod event;
pub mod state;
pub mod step;

pub use event::{EvalMetrics, Event, ObserveError, Observer, SampleText, StepMetrics};
pub use state::{Best, TrainState};
pub use step::{Trainer, initial_state};
