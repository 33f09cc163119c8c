//! The command line of `runner`: one file per command, which parses, calls the library crates and prints.

#![allow(rustdoc::broken_intra_doc_links, reason = "help texts give defaults in brackets")]

mod cli;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;
use std::process::ExitCode;

use mimalloc::MiMalloc;
use runner_spec::panics::{is_caught, panic_message};
use runner_threads::large_blocks::LargeBlocks;
use runner_threads::open_files::raise_open_file_limit;

#[global_allocator]
static ALLOCATOR: LargeBlocks<MiMalloc> = LargeBlocks::new(MiMalloc);

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(report_panic));
    raise_open_file_limit();
    cli::run()
}

/// Prints a panic, which is a bug in this program.
fn report_panic(info: &PanicHookInfo<'_>) {
    if is_caught() {
        return;
    }
    let message = panic_message(info.payload());
    let place = info.location().map_or_else(String::new, |location| format!(" ({location})"));
    cli::terminal::output::print_to_stderr(&format!(
        "error: this is a bug in runner: {message}{place}\n  please report it to whoever provided this build of \
         runner, with the command, its files, and the output of `runner --version` and `runner doctor`"
    ));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        cli::terminal::output::print_to_stderr(&backtrace.to_string());
    }
}
