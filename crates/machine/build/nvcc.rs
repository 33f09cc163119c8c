//! NVIDIA's compiler: the build script of `runner-compute` compiles the kernels with it, that of this crate records its version.

use std::env;
use std::path::PathBuf;
use std::process::Command;

pub(crate) struct Nvcc {
    pub(crate) path: PathBuf,
    /// For example `13.0`.
    pub(crate) version: String,
}

impl Nvcc {
    /// Looks for nvcc in $NVCC, in $CUDA_HOME, on the path, and in /usr/local/cuda.
    pub(crate) fn find() -> Option<Self> {
        for name in ["NVCC", "CUDA_HOME", "PATH"] {
            println!("cargo::rerun-if-env-changed={name}");
        }
        let nvcc_in = |root: PathBuf| root.join("bin/nvcc");
        let candidates = [
            env::var_os("NVCC").map(PathBuf::from),
            env::var_os("CUDA_HOME").map(|root| nvcc_in(root.into())),
            Some("nvcc".into()),
            Some(nvcc_in("/usr/local/cuda".into())),
        ];
        candidates.into_iter().flatten().find_map(|path| {
            let output = Command::new(&path).arg("--version").output().ok()?;
            let text = String::from_utf8_lossy(&output.stdout);
            let (_, rest) = text.split_once("release ")?;
            let version = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
            Some(Self { path, version })
        })
    }
}
