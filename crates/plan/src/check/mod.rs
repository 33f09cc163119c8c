//! Proves a plan right by walking its programs, before anything runs.
//!
//! Three things are shown. On each rank (`walk`): every instruction has what it needs, each micro-batch goes through each
//! chunk forwards and backwards once, and the gradients are whole when they are reduced, clipped and used; and how many hold
//! activations at once (`live`). Between ranks
//! (`meet`): every message is received by whom it is for, in an order that cannot wait in a circle; collectives are issued
//! in the same order by all members. Over all ranks (`sum`): the gradients are the sum in which every row of the global
//! batch has the coefficient 1, each of its tokens weighted 1 / valid tokens. The sum is symbolic: rows are intervals, and
//! coefficients are counted, not computed in floats.

mod around;
mod error;
mod live;
mod meet;
mod sum;
mod walk;

#[cfg(test)]
mod tests;

use runner_spec::program::Program;

pub use error::CheckError;
pub use live::Live;
pub use meet::{Meeting, SLOTS};
pub use walk::Walk;

/// Proves `programs`, one per rank in order, which all work on the same global batch.
///
/// # Errors
/// The first violation, naming its instruction.
pub fn check(programs: &[&Program]) -> Result<(Vec<Walk>, Meeting), CheckError> {
    let walks = programs.iter().map(|p| walk::walk(p)).collect::<Result<Vec<_>, _>>()?;
    sum::same_work(programs)?;
    sum::coefficients_are_one(programs, &walks)?;
    let meeting = meet::meet(programs)?;
    Ok((walks, meeting))
}

/// Walks one program on its own.
///
/// # Errors
/// The first violation, naming its instruction.
pub fn check_one(program: &Program) -> Result<Walk, CheckError> {
    walk::walk(program)
}
