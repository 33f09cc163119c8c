//! With the feature `cuda`, builds the kernels (`kernels.rs`) and the functions that stand in for CUDA's libraries when the program is
//! linked (`shims.rs`). Without the feature, it does nothing.

#![expect(clippy::print_stdout, reason = "a build script gives instructions to cargo on standard output")]

mod bindings;
mod kernels;
#[path = "../../machine/build/nvcc.rs"]
mod nvcc;
mod shims;

use std::process::ExitCode;

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return ExitCode::SUCCESS;
    }
    match shims::build().and_then(|()| kernels::build()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            for line in format!("{error:#}").lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}
