//! Which rank failed, and where it was.

use runner_comm::{RankPhase, RankSnapshot};
use runner_exec::{ExecError, InstructionList};
use runner_spec::program::Program;

/// The error of one rank, with the last instruction that it began.
#[derive(Debug, thiserror::Error)]
#[error("rank {rank} failed {place}: {source}")]
pub struct RankError {
    pub rank: usize,
    /// `in step 7 at step[3] Forward 2`.
    pub place: String,
    pub source: Box<ExecError>,
}

/// Where the rank of `program` is, by its line of the board.
#[must_use]
pub fn where_in(program: &Program, view: &RankSnapshot) -> String {
    let index = view.index as usize;
    let at = |list: &str, instruction: Option<String>| match instruction {
        Some(instruction) => format!("{list}[{index}] {instruction}"),
        None => format!("{list}[{index}] Checkpoint"),
    };
    let text = |i: &runner_spec::program::Instruction| i.to_string();
    let place = match view.list {
        l if l == InstructionList::Start as u32 => at("start", program.start.get(index).map(text)),
        l if l == InstructionList::Step as u32 => at("step", program.step.get(index).map(text)),
        _ => at("periodic", program.periodic.get(index).map(|p| text(&p.instruction))),
    };
    match view.phase {
        RankPhase::Starting => "while starting".to_owned(),
        RankPhase::Finished => format!("after its last step, {}", view.step + 1),
        _ => format!("in step {} at {place}", view.step + 1),
    }
}
