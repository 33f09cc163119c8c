//! The `runner` binary: everything is in the library; this maps its outcome to an exit code.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    runner::cli::run()
}
