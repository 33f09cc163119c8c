//! The build of this program, and the instruction sets that it uses.

use std::fmt;

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
        // Set by this crate's build script.
        #[cfg(feature = "cuda")]
        let cuda = Some(env!("RUNNER_CUDA_VERSION"));
        #[cfg(not(feature = "cuda"))]
        let cuda = None;
        Self { version: env!("CARGO_PKG_VERSION"), cuda, nccl: cfg!(feature = "nccl") }
    }
}

/// The names of the instruction sets that this program uses on this processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CpuInstructions {
    /// The instruction set of all kernels but products.
    pub vector_instructions: &'static str,
    /// The instruction set of products of f32 matrices.
    pub matmul_instructions: &'static str,
    /// The instruction set of products of bf16 matrices.
    pub bf16_matmul_instructions: &'static str,
}

impl fmt::Display for CpuInstructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vector_instructions, matmul_instructions, bf16_matmul_instructions } = self;
        write!(
            f,
            "instructions: vectors {vector_instructions}, matrix products {matmul_instructions}, bf16 products {bf16_matmul_instructions}"
        )
    }
}
