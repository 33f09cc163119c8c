//! The command line: one file per command. Parses arguments, calls the library, prints.

pub mod plan;
pub mod schema;
pub mod validate;

use std::process::ExitCode;

/// Runs the command that the process was started with.
pub fn run() -> ExitCode {
    ExitCode::SUCCESS
}
