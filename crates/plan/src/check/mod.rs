//! Proves a plan right by executing its programs symbolically, before anything runs.
//!
//! Three things are shown. On each rank (`execution`): every instruction has what it needs, each micro-batch passes each chunk
//! forwards and backwards once, the gradients are complete when they are reduced, clipped and used; and how many micro-batches
//! hold activations at once (`live_activations`). Between ranks (`message_matching`): every message is received by its addressee,
//! no order of waits is circular, and all members issue their collectives in the same order. Over all ranks
//! (`gradient_coefficients`): the gradients are the sum in which every row of the global batch has the coefficient 1, each of its
//! tokens weighted 1 / valid tokens. The sum is symbolic: rows are intervals, and coefficients are counted, not computed in floats.

mod error;
mod execution;
mod gradient_coefficients;
mod live_activations;
mod message_matching;
mod program_shape;

#[cfg(test)]
mod tests;

use runner_spec::program::Program;

pub use error::CheckError;
pub use execution::{ExecutionSummary, execute};
pub use live_activations::LiveMicroBatches;
pub(crate) use live_activations::live_during_passes;
pub use message_matching::INITIAL_CHANNEL_SLOTS;

/// Proves `programs`, one per rank in order, which all work on the same global batch. Returns what the execution of each showed, and
/// the number of slots that each channel needs.
///
/// # Errors
/// The first violation, naming its instruction.
pub fn check(programs: &[&Program]) -> Result<(Vec<ExecutionSummary>, usize), CheckError> {
    let executions = programs.iter().map(|p| execute(p)).collect::<Result<Vec<_>, _>>()?;
    gradient_coefficients::check_same_work(programs)?;
    gradient_coefficients::check_coefficients(programs, &executions)?;
    let slots = message_matching::match_messages(programs)?;
    Ok((executions, slots))
}
