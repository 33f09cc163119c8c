//! Executes the steps of several ranks interleaved: each rank continues until it waits for another rank.

use runner_spec::program::Program;

/// The ranks when none can continue: each has ended its step, or is blocked.
pub(crate) struct StoppedRanks<W> {
    /// Per rank, the index of its next instruction.
    pub next_instructions: Vec<usize>,
    /// The ranks that wait, in order, and the events that they wait for.
    pub blocked: Vec<(usize, W)>,
}

/// Executes the steps of `programs` until no rank can continue. `execute` executes the instruction of a rank at an index, or returns the
/// event that it waits for.
///
/// # Errors
/// The error of `execute`.
pub(crate) fn interleave_steps<W, E>(
    programs: &[&Program],
    mut execute: impl FnMut(usize, usize) -> Result<Option<W>, E>,
) -> Result<StoppedRanks<W>, E> {
    let mut next_instructions = vec![0; programs.len()];
    let mut waiting: Vec<usize> = (0..programs.len()).collect();
    loop {
        let (mut has_moved, mut blocked) = (false, Vec::new());
        for &rank in &waiting {
            let next = &mut next_instructions[rank];
            while *next < programs[rank].step.len() {
                if let Some(wait) = execute(rank, *next)? {
                    blocked.push((rank, wait));
                    break;
                }
                *next += 1;
                has_moved = true;
            }
        }
        if !has_moved || blocked.is_empty() {
            return Ok(StoppedRanks { next_instructions, blocked });
        }
        waiting = blocked.into_iter().map(|(rank, _)| rank).collect();
    }
}
