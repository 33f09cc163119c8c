//! The report of `runner doctor`: all facts in one record.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;

use serde::Serialize;

use super::build_facts::{BuildFacts, CpuInstructions};
use super::driver::DriverFacts;
use super::environment::shown_variables;
use super::features::{Feature, features};
use super::library::{CUBLAS_LT, LIBRARY_FOLDERS, Library, LibraryFacts, NCCL, absent_folders};
use crate::host::Machine;

/// The variables of this process, with the parts of names and values that are not UTF-8 replaced.
fn all_variables() -> impl Iterator<Item = (String, String)> {
    let lossy = |text: OsString| text.to_string_lossy().into_owned();
    env::vars_os().map(move |(name, value)| (lossy(name), lossy(value)))
}

/// The doctor's report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DoctorReport {
    pub build: BuildFacts,
    pub machine: Machine,
    pub cpu: CpuInstructions,
    pub driver: DriverFacts,
    pub libraries: Vec<LibraryFacts>,
    /// Folders of `RUNNER_CUDA_LIBS` that do not exist.
    pub notes: Vec<String>,
    pub environment: BTreeMap<String, String>,
    pub features: Vec<Feature>,
}

impl DoctorReport {
    /// Collects the facts about this machine and process. Loads the libraries that exist, and starts the driver; nothing runs on a GPU.
    pub fn collect(cpu: CpuInstructions) -> Self {
        let mut report = Self {
            build: BuildFacts::current(),
            machine: Machine::detect(),
            cpu,
            driver: DriverFacts::collect(),
            libraries: [&CUBLAS_LT, &NCCL].map(Library::facts).into(),
            notes: absent_folders(&env::var_os(LIBRARY_FOLDERS).unwrap_or_default()),
            environment: shown_variables(all_variables()),
            features: Vec::new(),
        };
        report.features = features(&report.build, &report.driver, &report.libraries);
        report
    }
}
