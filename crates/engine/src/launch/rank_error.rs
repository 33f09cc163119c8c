//! The error of a rank, and the place in its program where it occurred.

use runner_comm::{RankPhase, RankSnapshot};
use runner_exec::{ExecError, InstructionList};
use runner_spec::program::{Instruction, Program};

/// The error of one rank, with the last instruction that the rank began.
#[derive(Debug, thiserror::Error)]
#[error("rank {rank} failed {place}: {source}")]
pub struct RankError {
    pub rank: usize,
    /// Such as `in step 7 at step[3] Forward 2`.
    pub place: String,
    pub source: ExecError,
}

impl RankError {
    pub(crate) fn is_not_finite(&self) -> bool {
        matches!(self.source, ExecError::NotFinite { .. })
    }
}

/// The place of the rank of `program` whose status is `view`, such as `in step 7 at step[3] Forward 2`.
#[must_use]
pub(super) fn describe_place(program: &Program, view: &RankSnapshot) -> String {
    let index = view.index as usize;
    let periodic = || program.periodic.get(index).map(|periodic| &periodic.instruction);
    let (list, instruction) = match view.list {
        list if list == InstructionList::Start as u32 => ("start", program.start.get(index)),
        list if list == InstructionList::Step as u32 => ("step", program.step.get(index)),
        _ => ("periodic", periodic()),
    };
    let instruction = instruction.map_or_else(|| "Checkpoint".to_owned(), Instruction::to_string);
    match view.phase {
        RankPhase::Starting => "while starting".to_owned(),
        RankPhase::Finished => format!("after its last step, {}", view.step + 1),
        _ => format!("in step {} at {list}[{index}] {instruction}", view.step + 1),
    }
}
