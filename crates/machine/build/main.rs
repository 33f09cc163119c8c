//! With the feature `cuda`, gives `runner doctor` the version of CUDA that compiles the kernels.

#![expect(clippy::print_stdout, reason = "a build script gives instructions to cargo on standard output")]

#[expect(dead_code, reason = "the path is for the build script of `runner-compute`")]
mod nvcc;

fn main() {
    println!("cargo::rerun-if-changed=build");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    match nvcc::Nvcc::find() {
        Some(found) => println!("cargo::rustc-env=RUNNER_CUDA_VERSION={}", found.version),
        None => println!(
            "cargo::error=the feature `cuda` needs NVIDIA's compiler nvcc, which was not found\n\
             cargo::error=run `make cuda`, which downloads one into target/ and builds with it; or `scripts/cuda_kit.sh DIR`, then \
             `source DIR/env.sh`"
        ),
    }
}
