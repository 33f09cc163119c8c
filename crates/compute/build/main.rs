//! What is built besides Rust, with the feature `cuda`: the kernels (`kernels.rs`), and what stands in for CUDA's libraries when the
//! program is linked (`shims.rs`). The default build needs none of it, and nothing is done for it.

#![expect(clippy::print_stdout, reason = "that is how a build script speaks to cargo")]

mod kernels;
mod shims;
mod usage;

use std::process::ExitCode;

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return ExitCode::SUCCESS;
    }
    match shims::build().and_then(|()| kernels::build()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            for line in message.lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

/// An environment variable that cargo sets.
fn variable(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|e| format!("{name}: {e}"))
}
