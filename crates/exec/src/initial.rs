//! Weights that training starts from where it does not draw them. Where they are from, this room does not know.

use super::error::ExecError;
use super::step::drawn;
use runner_compute::state::TrainState;
use runner_spec::model::InitialWeights;
use runner_spec::program::Program;

/// The state at step 0 with the weights that `given` has; a rank asks for what it holds. Without any, all are drawn.
///
/// # Errors
/// As `initial_state`, and those of `given`.
pub fn initial_state_from(program: &Program, given: Option<&dyn InitialWeights>) -> Result<TrainState, ExecError> {
    drawn(program, &mut |entry, values| match given {
        Some(given) => given.fill(&entry.spec, values).map_err(ExecError::InitialWeights),
        None => Ok(()),
    })
}
