//! Checks what candle and NCCL need before they load a library: they would end the process where a library is missing.

use super::build_facts::BuildFacts;
use super::driver::{module_version, visible_gpus};
use super::features::outdated_driver;
use super::library::{CUBLAS_LT, DRIVER, NCCL};
use crate::gpu_facts::GpuFacts;
use runner_spec::error::PlainError;
use serde::{Deserialize, Serialize};

/// Versions of the libraries that compute and communicate on GPUs. `None`: missing, or unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuLibraries {
    pub driver: Option<String>,
    /// The newest CUDA that the driver runs.
    pub cuda: Option<String>,
    pub cublaslt: Option<String>,
    /// Known where ranks on several GPUs use it.
    pub nccl: Option<String>,
}

/// Checks that GPUs can be used here: the driver works and shows one, and the library for matrix products exists. Returns the GPUs.
///
/// # Errors
/// The missing requirement.
pub fn check_gpus() -> Result<Vec<GpuFacts>, PlainError> {
    let gpus = visible_gpus().map_err(with_advice)?;
    if gpus.is_empty() {
        return Err(with_advice(PlainError::failure("the driver shows no GPU")));
    }
    if let Some(outdated) = outdated_driver(BuildFacts::current().cuda, DRIVER.facts().version.as_deref()) {
        return Err(with_advice(PlainError::failure(outdated.what)));
    }
    CUBLAS_LT.open().map_err(with_advice)?;
    Ok(gpus)
}

/// Checks that GPUs can communicate through NCCL: its library exists.
///
/// # Errors
/// The missing requirement.
pub fn check_nccl() -> Result<(), PlainError> {
    NCCL.open().map(drop).map_err(with_advice)
}

/// The versions of the driver and of the libraries that compute on GPUs, and of NCCL if `has_nccl`.
pub fn gpu_libraries(has_nccl: bool) -> GpuLibraries {
    GpuLibraries {
        driver: module_version(),
        cuda: DRIVER.facts().version,
        cublaslt: CUBLAS_LT.facts().version,
        nccl: if has_nccl { NCCL.facts().version } else { None },
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn with_advice(what: PlainError) -> PlainError {
    PlainError::failure(format!("{what}; `runner doctor` shows what is missing"))
}
