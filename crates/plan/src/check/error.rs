//! The error of a check, and how it writes rows and instructions.

use runner_spec::program::{Instruction, Program};

/// The result of a check, unless it names a different error.
pub(super) type Result<T, E = CheckError> = std::result::Result<T, E>;

/// The first violation, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank}, {part}: {why}")]
pub struct CheckError {
    pub rank: usize,
    /// The part of the program that is wrong, such as an instruction with its position in its list.
    pub part: String,
    pub why: String,
}

impl CheckError {
    /// An error in `part` of `program`.
    pub(super) fn in_part(program: &Program, part: impl Into<String>, why: impl Into<String>) -> Self {
        Self { rank: program.rank, part: part.into(), why: why.into() }
    }

    /// An error at instruction `index` of the step of `program`.
    pub(super) fn at_instruction(program: &Program, index: usize, why: impl Into<String>) -> Self {
        Self::in_part(program, instruction_name(index, &program.step[index]), why)
    }
}

/// Returns from the function with a formatted error unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
pub(super) use ensure;

/// Names `count` rows from `start` on that are `stride` apart.
pub(super) fn row_names(start: usize, count: usize, stride: usize) -> String {
    let last = start + count.saturating_sub(1) * stride;
    match (count, stride) {
        (1, _) => format!("row {start}"),
        (_, 1) => format!("rows {start} … {last}"),
        (2, _) => format!("rows {start} and {last}"),
        _ => format!("rows {start}, {} … {last}", start + stride),
    }
}

/// Names an instruction of a step with its position.
pub(super) fn instruction_name(index: usize, instruction: &Instruction) -> String {
    format!("step[{index}] {instruction}")
}
