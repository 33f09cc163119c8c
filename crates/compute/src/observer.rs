//! Who hears of a run while it trains.

use runner_spec::event::{Event, ObserveError, TraceLine};

use crate::state::TrainState;

/// Consumes what the executor emits. An error stops the run and is returned by it.
pub trait Observer {
    /// # Errors
    /// Whatever keeps the observer from doing its part, such as a full disk.
    fn observe(&mut self, event: &Event) -> Result<(), ObserveError>;

    /// Called where a checkpoint is due, with everything that it must hold. An observer that saved it emits `Event::Saved`.
    ///
    /// # Errors
    /// If the checkpoint cannot be saved.
    fn checkpoint(&mut self, state: &TrainState) -> Result<(), ObserveError>;

    /// What a step computed, of a rank that traces: before the step's own event.
    ///
    /// # Errors
    /// If the lines cannot be recorded.
    fn trace(&mut self, lines: &[TraceLine]) -> Result<(), ObserveError> {
        let _ = lines;
        Ok(())
    }
}
