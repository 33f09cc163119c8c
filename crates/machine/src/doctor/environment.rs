//! Environment variables that change what CUDA, NCCL and launchers do.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;

use super::library::LIBRARY_FOLDERS;

/// The beginnings of the names of NVIDIA's variables.
const PREFIXES: [&str; 4] = ["CUDA_", "CUBLAS_", "NCCL_", "NVIDIA_"];

/// Names of the dynamic linker, of torchrun, Slurm, OpenMPI and OpenMP.
const NAMES: &str = "LD_LIBRARY_PATH LD_PRELOAD \
     RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT \
     SLURM_JOB_ID SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_NODEID SLURM_NNODES SLURM_STEP_NODELIST SLURM_GPUS_ON_NODE \
     OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE OMP_NUM_THREADS";

/// The variables among these that are set.
pub(super) fn environment() -> BTreeMap<String, String> {
    let lossy = |text: OsString| text.to_string_lossy().into_owned();
    env::vars_os().map(|(name, value)| (lossy(name), lossy(value))).filter(|(name, _)| matters(name)).collect()
}

fn matters(name: &str) -> bool {
    name == LIBRARY_FOLDERS
        || NAMES.split_whitespace().any(|known| known == name)
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::matters;

    #[test]
    fn which_variables_matter() {
        for name in ["CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "RANK", "RUNNER_CUDA_LIBS"] {
            assert!(matters(name), "{name}");
        }
        for name in ["RANKS", "HOME", "NCCL", "AWS_SECRET", "MY_CUDA_HOME"] {
            assert!(!matters(name), "{name}");
        }
    }
}
