//! The command line of `runner`: one file per command, which parses, calls the library crates and prints.

mod cli;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: runner_machine::heap::CountingAllocator<mimalloc::MiMalloc> =
    runner_machine::heap::CountingAllocator(mimalloc::MiMalloc);

fn main() -> ExitCode {
    keep_freed_memory();
    cli::run()
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
