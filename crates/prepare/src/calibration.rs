//! The calibration of a machine, kept in the cache folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use runner_files::read_regular_text;
use runner_machine::local_cluster::cpu_cluster;
use runner_spec::cluster::ClusterFacts;
use runner_spec::rates::{DeviceRates, Rates};

/// Kernels change with the program, and so may this file.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-3");

/// The measured rates of a machine, and the program that measured them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    pub version: String,
    /// The processor's name.
    pub device: String,
    /// Cores that the process may use.
    pub cores: usize,
    pub rates: Rates,
}

impl Calibration {
    /// Records how other programs computed during the measurement.
    pub fn set_disturbance(&mut self, disturbance: &str) {
        for rates in self.rates.devices.values_mut() {
            if let DeviceRates::Measured(measured) = rates {
                measured.disturbance = Some(disturbance.to_owned());
            }
        }
    }
}

/// The path in `cache_dir` of the calibration of a machine.
pub fn path(cache_dir: &Path, device: &str, cores: usize) -> PathBuf {
    let key = blake3::hash(format!("{VERSION}\n{device}\n{cores}").as_bytes()).to_hex();
    cache_dir.join(format!("calibration-{}.json", &key[..16]))
}

/// Reads a calibration; `None` if there is none, or one of a different program or machine.
pub fn load(cache_dir: &Path, device: &str, cores: usize) -> Option<Calibration> {
    let text = read_regular_text(&path(cache_dir, device, cores)).ok()?;
    let stored: Calibration = serde_json::from_str(&text).ok()?;
    (stored.version == VERSION && stored.device == device && stored.cores == cores).then_some(stored)
}

/// Writes a calibration, whole or not at all. Returns where.
///
/// # Errors
/// If the folder cannot be written.
pub fn save(cache_dir: &Path, calibration: &Calibration) -> io::Result<PathBuf> {
    fs::create_dir_all(cache_dir)?;
    let path = path(cache_dir, &calibration.device, calibration.cores);
    runner_files::write_atomic(&path, &serde_json::to_vec_pretty(calibration)?)?;
    Ok(path)
}

/// The measured rates of this machine; `None` if it was not measured, or `cluster` does not have its processor.
pub fn known_rates(cluster: &ClusterFacts, cache: &Path) -> Option<Rates> {
    let (device, cores) = this_processor();
    if !cluster.devices.iter().any(|d| d.name == device) {
        return None;
    }
    Some(load(cache, &device, cores)?.rates)
}

/// The name of this machine's processor, and the cores that this process may use.
pub fn this_processor() -> (String, usize) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let name = cpu_cluster(cores).devices.first().map_or_else(String::new, |d| d.name.clone());
    (name, cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_calibration_is_found_on_the_same_machine_only() {
        let dir = tempfile::tempdir().expect("a folder");
        let calibration = Calibration {
            version: VERSION.to_owned(),
            device: "Some CPU".to_owned(),
            cores: 4,
            rates: Rates::default(),
        };
        let path = save(dir.path(), &calibration).expect("saved");
        assert_eq!(load(dir.path(), "Some CPU", 4), Some(calibration));
        assert_eq!(load(dir.path(), "Some CPU", 8), None);
        assert_eq!(load(dir.path(), "Other CPU", 4), None);
        fs::write(path, "{ torn").expect("written");
        assert_eq!(load(dir.path(), "Some CPU", 4), None);
    }
}
