//! This machine: its folders, threads, devices and variables, as the command line found them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use runner_machine::host::Git;
use runner_machine::local_cluster::local_cluster;
use runner_spec::cluster::{ClusterFacts, KernelWorkspace};
use runner_threads::threads::thread_pool;

use crate::calibration;
use runner_spec::error::{CommandError, Result};

/// With many more threads than cores a step takes minutes, and a signal waits for its end.
pub const MAX_THREADS_PER_CORE: usize = 16;

/// The folders, threads and variables that commands work with. It reads no environment variable itself.
#[derive(Debug, Clone)]
pub struct Host {
    /// The folder of run directories.
    pub runs: PathBuf,
    /// The folder of prepared data; `None` if the environment does not determine one.
    pub cache: Option<PathBuf>,
    /// Threads to compute with. The results do not depend on it.
    pub threads: usize,
    /// True if the number of threads was asked for; else it is the number of this machine's cores.
    pub has_given_threads: bool,
    /// Peak FLOP/s of each device, which utilization is reported against; `None`: as far as it is known.
    pub peak_flops: Option<f64>,
    /// Environment variables that the hub's settings are read from.
    pub environment: BTreeMap<String, String>,
    /// Variables of the program's own that had effect, for the record. Nothing secret.
    pub recorded_environment: BTreeMap<String, String>,
    /// The variables that `machine::doctor::shown_variables` lets records show.
    pub platform_environment: BTreeMap<String, String>,
    pub build: ProgramBuild,
    /// The memory that the build's kernels take beside the tensors, which plans count.
    pub kernels: KernelWorkspace,
    /// The folder whose git commit goes into the record; `None`: no commit is recorded.
    pub working_folder: Option<PathBuf>,
}

/// The build of the program, for the record. `None`: not known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProgramBuild {
    /// The target triple.
    pub target: Option<String>,
    /// Hash of the sources.
    pub source_hash: Option<String>,
}

impl Host {
    /// This machine with all its cores, runs in `runs` and prepared data in `cache`. `kernels` is the memory of the kernels that compute
    /// (`runner_compute::kernel_workspace`); without it plans count too little memory.
    pub fn new(runs: PathBuf, cache: PathBuf, kernels: KernelWorkspace) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            runs,
            cache: Some(cache),
            threads,
            has_given_threads: false,
            peak_flops: None,
            environment: BTreeMap::new(),
            recorded_environment: BTreeMap::new(),
            platform_environment: BTreeMap::new(),
            build: ProgramBuild::default(),
            kernels,
            working_folder: None,
        }
    }

    /// The folder of prepared data.
    ///
    /// # Errors
    /// `Request` if there is none.
    pub fn cache(&self) -> Result<&Path> {
        let missing =
            || CommandError::request("no home folder; set `RUNNER_CACHE` to a folder for prepared data".to_owned());
        self.cache.as_deref().ok_or_else(missing)
    }

    /// The commit of the working folder.
    pub fn git(&self) -> Option<Git> {
        self.working_folder.as_deref().and_then(Git::state_of)
    }

    /// A pool of `threads` threads, in which to prepare data and compute.
    ///
    /// # Errors
    /// If the system does not give that many threads.
    pub fn pool(&self) -> Result<rayon::ThreadPool> {
        // `threads` may be those of a job on a larger machine.
        let most = MAX_THREADS_PER_CORE * std::thread::available_parallelism().map_or(1, usize::from);
        thread_pool(self.threads.min(most)).map_err(|error| CommandError::failure(error.to_string()))
    }
}

/// This machine, with its measured speed where it was calibrated.
pub fn local_devices(host: &Host) -> ClusterFacts {
    let mut cluster = local_cluster(host.threads).with_peak_flops(host.peak_flops);
    cluster.kernels = host.kernels;
    if let Some(rates) = host.cache.as_ref().and_then(|cache| calibration::known_rates(&cluster, cache)) {
        // Calibration measures the CPU alone: what is known of GPUs stays.
        cluster.rates.devices.extend(rates.devices);
        cluster.rates.links = rates.links;
    }
    cluster
}
