//! Builds `shims.c`, whose functions stand in for CUDA's libraries when the program is linked and load the real libraries when they are
//! first called. So building needs none of the libraries, and the program starts where there is none.

use std::path::PathBuf;
use std::{env, fs};

use anyhow::{Context as _, Result};

/// The libraries that cudarc and candle-kernels ask the linker for.
const LIBRARIES: [&str; 7] = ["cublas", "cublasLt", "cuda", "cudart", "curand", "nccl", "nvrtc"];

/// An archive without members.
const EMPTY_ARCHIVE: &str = "!<arch>\n";

pub(crate) fn build() -> Result<()> {
    let out = PathBuf::from(env::var("OUT_DIR").context("OUT_DIR")?);
    // The C compiler's driver is a dependency of that feature alone.
    #[cfg(feature = "cuda")]
    compile(&out)?;
    // The linker gets the whole archive before the dependencies that call it. It drops functions that nothing calls, and ignores the
    // real libraries if it finds some, since all functions are defined by then.
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static:+whole-archive,-bundle=runner_shims");
    // The linker must find something under these names.
    let empty = out.join("empty");
    fs::create_dir_all(&empty).with_context(|| empty.display().to_string())?;
    for library in LIBRARIES {
        let path = empty.join(format!("lib{library}.a"));
        fs::write(&path, EMPTY_ARCHIVE).with_context(|| path.display().to_string())?;
    }
    println!("cargo::rustc-link-search=native={}", empty.display());
    Ok(())
}

#[cfg(feature = "cuda")]
fn compile(out: &std::path::Path) -> Result<()> {
    cc::Build::new()
        .file("build/shims.c")
        .out_dir(out)
        .opt_level(2)
        .debug(false)
        .cargo_metadata(false)
        .try_compile("runner_shims")
        .context("build/shims.c")
}
