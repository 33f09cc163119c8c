//! What a violation says, and how rows and places are written.

use runner_spec::program::{Instruction, Program};

/// The first thing that is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank}, {place}: {why}")]
pub struct CheckError {
    pub rank: usize,
    /// The instruction with its position in its list, or another part of the program.
    pub place: String,
    pub why: String,
}

/// Rows that are `stride` apart.
pub(super) fn rows(start: usize, count: usize, stride: usize) -> String {
    let last = start + count.saturating_sub(1) * stride;
    match (count, stride) {
        (1, _) => format!("row {start}"),
        (_, 1) => format!("rows {start} … {last}"),
        (2, _) => format!("rows {start} and {last}"),
        _ => format!("rows {start}, {} … {last}", start + stride),
    }
}

pub(super) fn place(index: usize, instruction: &Instruction) -> String {
    format!("step[{index}] {instruction}")
}

/// An error at instruction `index` of `program`'s step.
pub(super) fn at(program: &Program, index: usize, why: String) -> CheckError {
    CheckError { rank: program.rank, place: place(index, &program.step[index]), why }
}
