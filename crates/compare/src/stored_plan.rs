//! Reads `plan.json`, and makes the plan of a run again: it is a pure function of the experiment, the facts of its data and the devices.

use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use runner_record::RecordError;
use runner_record::files::{check_format, read_plan};
use runner_record::manifest::Manifest;
use runner_record::run_dir::{self, PLAN, RESOLVED};
use runner_spec::cluster::{ClusterFacts, DeviceFacts};
use runner_spec::data::DataFacts;
use runner_spec::error::Result;
use runner_spec::experiment::Experiment;
use runner_spec::plan::{PLAN_FORMAT, Plan};
use runner_spec::program::Device;

/// Facts of the data that the run directory `path` was planned for.
///
/// # Errors
/// If the plan is missing or damaged.
pub fn data_facts(path: &Path) -> Result<DataFacts, RecordError> {
    #[derive(Debug, Deserialize)]
    struct DataField {
        data: DataFacts,
    }
    Ok(read_file::<DataField>(path)?.data)
}

/// Reads `plan.json` in the run directory `path`. A plan is a pure function of the experiment, the data and the devices, so it can be written
/// again.
fn read_file<T: DeserializeOwned>(path: &Path) -> Result<T, RecordError> {
    let file = path.join(PLAN);
    read_plan(&file).map_err(|error| {
        let (resolved, plan) = (path.join(RESOLVED), file.display());
        let advice = format!(
            "restore it, or, if its data and devices have not changed, write it again with `runner plan {} --json > \
             {plan}`",
            resolved.display()
        );
        match error {
            RecordError::Io { source, .. } if source.kind() == ErrorKind::NotFound => {
                RecordError::damaged(&file, format!("the plan of the run is missing; {advice}"))
            }
            RecordError::Damaged { message, .. } => {
                RecordError::damaged(&file, format!("the plan of the run is damaged ({message}); {advice}"))
            }
            other => other,
        }
    })
}

/// The plan of the run directory `path`.
///
/// # Errors
/// If it is missing, damaged or of another format.
pub fn read(path: &Path) -> Result<Plan, RecordError> {
    #[derive(Debug, Deserialize)]
    struct FormatField {
        format: u32,
    }
    check_format(&path.join(PLAN), read_file::<FormatField>(path)?.format, PLAN_FORMAT)?;
    read_file(path)
}

/// The experiment in `resolved.yaml` of the run directory `path`. Files that it names need not exist.
///
/// # Errors
/// If `resolved.yaml` is missing; its mistakes.
pub fn resolved_experiment(path: &Path) -> Result<Experiment> {
    Ok(runner_config::load_resolved(&run_dir::resolved_file(path)?)?.experiment)
}

/// The plan of the experiment of the run directory `path` with its recorded facts of the data, on devices as the manifest names them.
///
/// # Errors
/// If `resolved.yaml` is not an experiment, or cannot be planned.
pub fn compiled(path: &Path) -> Result<Plan, RecordError> {
    let file = path.join(RESOLVED);
    let loaded = runner_config::load_resolved(&file).map_err(|e| RecordError::damaged(&file, e.render(false)))?;
    let cluster = cluster(&run_dir::read_manifest(path)?);
    runner_plan::compile(&loaded.experiment, &data_facts(path)?, &cluster)
        .map_err(|e| RecordError::damaged(&file, e.to_string()))
}

/// The devices of a recorded run. Their speed and memory are not recorded, and change no number.
fn cluster(manifest: &Manifest) -> ClusterFacts {
    let facts = |name: &String| {
        let device = match name.parse() {
            Ok(Device::Cuda(index)) => Device::Cuda(index),
            _ => Device::Cpu,
        };
        let name = manifest.machine.cpu.clone().unwrap_or_else(|| name.clone());
        DeviceFacts::unmeasured(device, name, manifest.threads)
    };
    // Ranks on the CPU share the one there is.
    let mut devices: Vec<DeviceFacts> = manifest.devices.iter().map(facts).collect();
    devices.dedup_by(|a, b| a.device == Device::Cpu && b.device == Device::Cpu);
    ClusterFacts { devices, sharing: true, ..ClusterFacts::default() }
}
