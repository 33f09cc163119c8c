//! The interface through which a run reports its events and checkpoints while it trains.

use runner_compute::state::TrainState;
use runner_spec::event::{Event, ObserveError, TraceLine};

/// Receives the events of a run. An error stops the run, which returns it.
pub trait Observer {
    /// Called with each event of the run, in order.
    ///
    /// # Errors
    /// If the observer cannot do its work, for example because the disk is full.
    fn observe(&mut self, event: &Event) -> Result<(), ObserveError>;

    /// Called when a checkpoint is due, with everything that the checkpoint must hold. An observer that has saved it emits
    /// `Event::Saved`.
    ///
    /// # Errors
    /// If the checkpoint cannot be saved.
    fn checkpoint(&mut self, state: &TrainState) -> Result<(), ObserveError>;

    /// Called on a rank that traces, before the event of a step, with the trace of that step.
    ///
    /// # Errors
    /// If the lines cannot be recorded.
    fn trace(&mut self, lines: &[TraceLine]) -> Result<(), ObserveError> {
        let _ = lines;
        Ok(())
    }
}

/// An observer that ignores all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct IgnoreEvents;

impl Observer for IgnoreEvents {
    fn observe(&mut self, _: &Event) -> Result<(), ObserveError> {
        Ok(())
    }

    fn checkpoint(&mut self, _: &TrainState) -> Result<(), ObserveError> {
        Ok(())
    }
}
