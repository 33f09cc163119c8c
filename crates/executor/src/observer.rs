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

    /// Called when a checkpoint is due, with everything that the checkpoint must hold. If training `continues`, the observer may read the
    /// state until `before_update` returns, and save the checkpoint meanwhile. Once it has saved it, it emits `Event::Saved`.
    ///
    /// # Errors
    /// If this or an earlier checkpoint cannot be saved.
    fn checkpoint(&mut self, state: &TrainState, continues: bool) -> Result<(), ObserveError>;

    /// Called before the state changes. Returns when the observer no longer reads it.
    fn before_update(&mut self) {}

    /// Called when no other event follows. At the regular end, returns once all checkpoints are saved. After an error, saves what does not
    /// depend on other ranks.
    ///
    /// # Errors
    /// If a checkpoint cannot be saved.
    fn finish(&mut self, is_regular: bool) -> Result<(), ObserveError> {
        let _ = is_regular;
        Ok(())
    }

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

    fn checkpoint(&mut self, _: &TrainState, _: bool) -> Result<(), ObserveError> {
        Ok(())
    }
}
