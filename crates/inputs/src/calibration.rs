//! The calibration of a machine, kept in the cache folder, and the parts of which it is made.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use runner_files::read_regular_text;
use runner_machine::local_cluster::cpu_cluster;
use runner_spec::cluster::ClusterFacts;
use runner_spec::rates::{
    DeviceRates, EmbeddingPoint, HeadPoint, LayerPoint, Link, Links, MeasuredRates, Rates, UpdatePoint,
};

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

/// The largest share by which a piece of work takes longer than in its fastest run on an idle machine.
pub const MAX_SPREAD: f64 = 0.25;

/// What one part of a calibration measures.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PartRates {
    pub layers: Vec<LayerPoint>,
    pub heads: Vec<HeadPoint>,
    pub embeddings: Vec<EmbeddingPoint>,
    pub updates: Vec<UpdatePoint>,
    pub bf16_factor: Option<f64>,
    pub link: Option<Link>,
}

/// A measured part.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredPart {
    pub name: String,
    pub rates: PartRates,
    /// Seconds of the same piece of work, run before and after the part: the slower of the two.
    pub probe_seconds: f64,
}

/// The parts of a calibration that have been measured, in any order.
#[derive(Debug, Clone, PartialEq)]
pub struct CalibrationParts {
    /// The processor's name.
    pub device: String,
    /// Cores that the process may use.
    pub cores: usize,
    /// True if fewer sizes are measured.
    pub quick: bool,
    pub parts: Vec<MeasuredPart>,
}

impl CalibrationParts {
    pub fn new(device: &str, cores: usize, quick: bool) -> Self {
        Self { device: device.to_owned(), cores, quick, parts: Vec::new() }
    }

    fn fastest_probe(&self) -> f64 {
        self.parts.iter().map(|part| part.probe_seconds).fold(f64::INFINITY, f64::min)
    }

    /// True if `part` was measured while the machine was about as fast as in its fastest part.
    fn is_quiet(&self, part: &MeasuredPart) -> bool {
        part.probe_seconds <= self.fastest_probe() * (1.0 + MAX_SPREAD)
    }

    /// True if the part called `name` needs no further measurement.
    pub fn has_quiet(&self, name: &str) -> bool {
        self.parts.iter().any(|part| part.name == name && self.is_quiet(part))
    }

    /// The number of parts that were measured while the machine was quiet.
    pub fn quiet_parts(&self) -> usize {
        self.parts.iter().filter(|part| self.is_quiet(part)).count()
    }

    /// The share by which the slowest probe took longer than the fastest.
    pub fn spread(&self) -> f64 {
        let slowest = self.parts.iter().map(|part| part.probe_seconds).fold(0.0, f64::max);
        slowest / self.fastest_probe() - 1.0
    }

    /// Adds a measurement, unless the part has been measured while the machine was faster.
    pub fn add(&mut self, part: MeasuredPart) {
        match self.parts.iter_mut().find(|known| known.name == part.name) {
            Some(known) if known.probe_seconds <= part.probe_seconds => {}
            Some(known) => *known = part,
            None => self.parts.push(part),
        }
    }

    /// All parts together.
    pub fn calibration(&self) -> Calibration {
        let mut measured = MeasuredRates {
            cores: self.cores,
            layers: Vec::new(),
            heads: Vec::new(),
            embeddings: Vec::new(),
            updates: Vec::new(),
            bf16_factor: 1.0,
            disturbance: None,
        };
        let mut links = None;
        for MeasuredPart { rates, .. } in &self.parts {
            measured.layers.extend(&rates.layers);
            measured.heads.extend(&rates.heads);
            measured.embeddings.extend(&rates.embeddings);
            measured.updates.extend(&rates.updates);
            measured.bf16_factor = rates.bf16_factor.unwrap_or(measured.bf16_factor);
            let within_and_between =
                |link| Links { within: link, between: Link { sum_bytes_per_second: None, ..link } };
            links = rates.link.map(within_and_between).or(links);
        }
        let rates =
            Rates { devices: [(self.device.clone(), DeviceRates::Measured(measured))].into(), links, gpu_links: None };
        Calibration { version: VERSION.to_owned(), device: self.device.clone(), cores: self.cores, rates }
    }
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

/// Reads a calibration; `None` if there is none that can be read, or one of a different program or machine.
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
    let path = path(cache_dir, &calibration.device, calibration.cores);
    fs::create_dir_all(cache_dir)?;
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

    fn part(name: &str, probe_seconds: f64) -> MeasuredPart {
        MeasuredPart { name: name.to_owned(), rates: PartRates::default(), probe_seconds }
    }

    #[test]
    fn disturbed_parts_are_measured_again_and_quiet_ones_are_kept() {
        let mut parts = CalibrationParts::new("Some CPU", 4, false);
        parts.add(part("layers", 1.0));
        parts.add(part("copies", 1.3));
        assert_eq!((parts.has_quiet("layers"), parts.has_quiet("copies"), parts.quiet_parts()), (true, false, 1));
        assert!((parts.spread() - 0.3).abs() < 1e-12);
        // A slower measurement does not replace a faster one; a faster one may show that another part was disturbed.
        parts.add(part("copies", 1.5));
        assert_eq!(parts.parts[1].probe_seconds, 1.3);
        parts.add(part("copies", 0.7));
        assert_eq!((parts.has_quiet("layers"), parts.has_quiet("copies")), (false, true));
    }
}
