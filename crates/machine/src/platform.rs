//! The platform of a session: what a program was built from and for, and the instruction sets, GPUs and libraries that it computes with.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::doctor;
pub use crate::doctor::{CpuInstructions, GpuLibraries};

/// The program's build, and what it computes with on one machine. `None`: not known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Platform {
    /// The target triple that the program was built for, such as `x86_64-unknown-linux-musl`: it names the C library.
    pub target: Option<String>,
    /// BLAKE3 hash of the program's own sources.
    pub source_hash: Option<String>,
    /// The instruction set of this program's kernels: `AVX-512`, `AVX2`, `NEON` or `baseline`.
    pub vector_instructions: Option<String>,
    /// The instruction set of products of f32 matrices.
    pub matmul_instructions: Option<String>,
    /// The instruction set of products of bf16 matrices, if CPUs train in bf16.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bf16_matmul_instructions: Option<String>,
    /// The GPUs that ranks use on this machine, in the order of their numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuModel>,
    /// The libraries behind the GPUs, if ranks use GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_libraries: Option<GpuLibraries>,
}

/// The kind of a GPU, as the driver describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuModel {
    pub name: String,
    pub memory_bytes: u64,
    /// Such as `9.0`.
    pub compute_capability: String,
}

/// The GPUs of this machine with the numbers `used`, and the versions of their libraries; of NCCL if ranks use it (`has_nccl`).
/// Empty in a build without CUDA, and where the driver does not work.
pub fn gpus_and_libraries(used: &BTreeSet<usize>, has_nccl: bool) -> (Vec<GpuModel>, Option<GpuLibraries>) {
    if used.is_empty() || !cfg!(feature = "cuda") {
        return (Vec::new(), None);
    }
    let Ok(gpus) = doctor::check_gpus() else { return (Vec::new(), None) };
    let models = gpus.into_iter().filter(|gpu| used.contains(&gpu.index)).map(|gpu| GpuModel {
        name: gpu.name,
        memory_bytes: gpu.memory_bytes,
        compute_capability: gpu.compute_capability.to_string(),
    });
    (models.collect(), Some(doctor::gpu_libraries(has_nccl && cfg!(feature = "nccl"))))
}
