//! The command line of `runner`: one file per command, which parses, calls the library crates and prints.

mod cli;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;
use std::process::ExitCode;

use runner_spec::panics::{is_caught, panic_message};

#[global_allocator]
static ALLOCATOR: runner_machine::heap::CountingAllocator<mimalloc::MiMalloc> =
    runner_machine::heap::CountingAllocator(mimalloc::MiMalloc);

fn main() -> ExitCode {
    keep_freed_memory();
    std::panic::set_hook(Box::new(report_panic));
    cli::run()
}

/// Prints a panic, which is a bug in this program.
fn report_panic(info: &PanicHookInfo<'_>) {
    if is_caught() {
        return;
    }
    let message = panic_message(info.payload());
    let place = info.location().map_or_else(String::new, |location| format!(" ({location})"));
    cli::output::print_to_stderr(&format!(
        "error: this is a bug in runner: {message}{place}\n  please report it to whoever provided this build of \
         runner, with the command, its files, and the output of `runner --version` and `runner doctor`"
    ));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        cli::output::print_to_stderr(&backtrace.to_string());
    }
}

/// A training step frees and allocates the same large buffers over and over. Giving them back to the kernel in between costs
/// a page fault and a cleared page each time: a fifth of a GPT-2 124M step on two cores.
fn keep_freed_memory() {
    /// `mi_option_purge_delay` of mimalloc 3; −1: never.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: setting an option is not thread-safe, and no other thread exists yet.
    unsafe {
        libmimalloc_sys::mi_option_set(PURGE_DELAY, -1);
    }
}
