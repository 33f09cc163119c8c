//! Environment variables that change what CUDA, NCCL, launchers, thread pools and allocators do. Records and reports show them, and no
//! others.

use std::collections::BTreeMap;

use super::library::LIBRARY_FOLDERS;

/// The beginnings of the names of variables that change how CUDA's libraries compute.
const COMPUTING_PREFIXES: [&str; 4] = ["CUDA_", "CUBLAS_", "NCCL_", "NVIDIA_"];

/// Variables that change which libraries are loaded, and which functions of the C library are chosen.
const COMPUTING_NAMES: [&str; 4] = [LIBRARY_FOLDERS, "LD_LIBRARY_PATH", "LD_PRELOAD", "GLIBC_TUNABLES"];

/// The beginnings of the names of variables of launchers, thread pools and allocators. No number depends on them.
const OTHER_PREFIXES: [&str; 7] = ["SLURM_", "MASTER_", "OMPI_COMM_WORLD_", "OMP_", "RAYON_", "MALLOC_", "MIMALLOC_"];

/// Variables of torchrun, and of the mpirun of MPICH and Intel MPI.
const OTHER_NAMES: [&str; 9] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
];

/// A variable with one of these words in its name may hold a secret. It is never shown.
const SECRET_WORDS: [&str; 9] = ["TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTH", "JWT", "COOKIE"];

/// Values are cut after this many characters.
const MAX_VALUE_CHARS: usize = 1024;

/// The variables among `variables` that may be shown and recorded, long values cut. An address with a user or password is left out.
pub fn shown_variables(variables: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let has_user = |value: &str| value.contains("://") && value.contains('@');
    let shown = variables.filter(|(name, value)| is_shown_variable(name) && !has_user(value));
    shown.map(|(name, value)| (name, cut(value))).collect()
}

/// True for a variable of CUDA's libraries or NCCL, which changes nothing for a run on CPUs.
pub fn is_gpu_variable(name: &str) -> bool {
    name == LIBRARY_FOLDERS || COMPUTING_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// True for a variable that may be shown, and that may change which numbers are computed.
pub fn is_computing_variable(name: &str) -> bool {
    let is_computing =
        COMPUTING_NAMES.contains(&name) || COMPUTING_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    is_computing && !may_be_secret(name)
}

/// True for a variable that records and reports may show.
pub fn is_shown_variable(name: &str) -> bool {
    let is_other = OTHER_NAMES.contains(&name) || OTHER_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    is_computing_variable(name) || (is_other && !may_be_secret(name))
}

fn may_be_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

fn cut(value: String) -> String {
    match value.char_indices().nth(MAX_VALUE_CHARS) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_matter_are_shown() {
        for name in ["CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "RUNNER_CUDA_LIBS", "LD_PRELOAD"] {
            assert!(is_shown_variable(name) && is_computing_variable(name), "{name}");
        }
        for name in ["RANK", "OMP_NUM_THREADS", "SLURM_JOB_ID", "MASTER_ADDR", "MALLOC_ARENA_MAX", "PMI_RANK"] {
            assert!(is_shown_variable(name) && !is_computing_variable(name), "{name}");
        }
        for name in ["RANKS", "HOME", "NCCL", "AWS_SECRET", "MY_CUDA_HOME", "RUNNER_TOKEN", "HF_TOKEN"] {
            assert!(!is_shown_variable(name), "{name}");
        }
    }

    #[test]
    fn secrets_are_not_shown_and_long_values_are_cut() {
        let secret = [
            "SLURM_JWT",
            "NVIDIA_API_KEY",
            "MASTER_PASSWORD",
            "CUDA_auth",
            "NCCL_TOKEN",
            "OMP_SECRET_X",
            "SLURM_CREDENTIAL",
        ];
        let given = secret.into_iter().chain(["NCCL_X", "HOME"]).map(|name| (name.to_owned(), "é".repeat(5000)));
        let address = [("NCCL_URL".to_owned(), "http://user:word@host".to_owned())];
        let shown = shown_variables(given.chain(address));
        assert_eq!(shown.len(), 1);
        assert_eq!(shown["NCCL_X"].chars().count(), MAX_VALUE_CHARS + 1);
    }
}
