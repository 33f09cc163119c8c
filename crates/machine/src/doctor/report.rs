//! The report of `runner doctor`: all facts in one record.

use std::collections::BTreeMap;
use std::{env, iter};

use serde::Serialize;

use super::driver::DriverFacts;
use super::environment::environment;
use super::features::{Feature, features};
use super::library::{CUBLAS_LT, CUDNN, DRIVER, LIBRARY_FOLDERS, Library, LibraryFacts, NCCL, NVML, NVRTC};
use super::search_notes::search_notes;
use crate::host::Machine;

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

/// The doctor's report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DoctorReport {
    pub build: BuildFacts,
    pub machine: Machine,
    pub driver: DriverFacts,
    pub libraries: Vec<LibraryFacts>,
    /// Oddities of the search for libraries.
    pub notes: Vec<String>,
    pub environment: BTreeMap<String, String>,
    pub features: Vec<Feature>,
}

impl DoctorReport {
    /// Collects the facts about this machine and process. Loads the libraries that exist, and starts the driver; nothing runs on a GPU.
    pub fn collect() -> Self {
        let driver = DRIVER.facts().path;
        let libraries = [&CUBLAS_LT, &NVRTC, &NCCL, &CUDNN, &NVML];
        let looked_for: Vec<_> = iter::once(&DRIVER).chain(libraries).collect();
        let mut report = Self {
            build: BuildFacts::current(),
            machine: Machine::detect(),
            driver: DriverFacts::collect(),
            libraries: libraries.map(Library::facts).into(),
            notes: search_notes(&env::var_os(LIBRARY_FOLDERS).unwrap_or_default(), &looked_for, driver.as_deref()),
            environment: environment(),
            features: Vec::new(),
        };
        report.features = features(&report.build, &report.driver, &report.libraries);
        report
    }
}
