//! Runs the steps of several ranks together: each rank goes on until it waits for another one.

use runner_spec::program::Program;

/// The end of a run: all ranks have ended, or those that have not wait.
pub(crate) struct Standstill<W> {
    /// Per rank, the index of its next instruction.
    pub positions: Vec<usize>,
    /// The ranks that wait, in order, and the events that they wait for.
    pub blocked: Vec<(usize, W)>,
}

/// Runs the steps of `programs` until no rank can go on. `step` executes the instruction of a rank at an index, or returns the event that
/// it waits for.
///
/// # Errors
/// The error of `step`.
pub(crate) fn run_together<W, E>(
    programs: &[&Program],
    mut step: impl FnMut(usize, usize) -> Result<Option<W>, E>,
) -> Result<Standstill<W>, E> {
    let mut positions = vec![0; programs.len()];
    let mut waiting: Vec<usize> = (0..programs.len()).collect();
    loop {
        let (mut has_moved, mut blocked) = (false, Vec::new());
        for &rank in &waiting {
            while positions[rank] < programs[rank].step.len() {
                if let Some(wait) = step(rank, positions[rank])? {
                    blocked.push((rank, wait));
                    break;
                }
                positions[rank] += 1;
                has_moved = true;
            }
        }
        if !has_moved || blocked.is_empty() {
            return Ok(Standstill { positions, blocked });
        }
        waiting = blocked.into_iter().map(|(rank, _)| rank).collect();
    }
}
