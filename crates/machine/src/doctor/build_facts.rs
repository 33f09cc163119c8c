//! The build of this program.

use serde::Serialize;

/// The features and tools with which this program was built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BuildFacts {
    pub version: &'static str,
    /// The CUDA whose compiler made the kernels, as `13.0`; `None`: built without the feature `cuda`.
    pub cuda: Option<&'static str>,
    /// Built with the feature `nccl`.
    pub nccl: bool,
}

impl BuildFacts {
    /// Facts about this program.
    pub fn current() -> Self {
        let cuda = if cfg!(feature = "cuda") { option_env!("RUNNER_CUDA_VERSION") } else { None };
        Self { version: env!("CARGO_PKG_VERSION"), cuda, nccl: cfg!(feature = "nccl") }
    }
}
