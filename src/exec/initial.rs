//! Weights that training starts from where it does not draw them. Where they are from, this room does not know.

use super::error::ExecError;
use super::state::TrainState;
use super::step::drawn;
use crate::model::ParamSpec;
use crate::plan::program::Program;

/// Where parameters start from.
pub trait InitialWeights {
    /// Writes what `parameter` starts as into `values`, its elements. What it does not have it leaves as it is: that was drawn.
    ///
    /// # Errors
    /// If it cannot be read, or is not of this shape.
    fn fill(&self, parameter: &ParamSpec, values: &mut [f32]) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

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
