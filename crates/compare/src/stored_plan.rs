//! Reads `plan.json` of any version. A plan of an older format is compiled again from the experiment and the facts of its data, which
//! every version recorded: a plan is a pure function of them.

use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use runner_record::RecordError;
use runner_record::files::read_plan;
use runner_record::manifest::Manifest;
use runner_record::run_dir::{self, PLAN, RESOLVED};
use runner_spec::cluster::{ClusterFacts, DeviceFacts, KernelWorkspace};
use runner_spec::data::DataFacts;
use runner_spec::error::Result;
use runner_spec::experiment::Experiment;
use runner_spec::plan::{PLAN_FORMAT, Plan};
use runner_spec::program::Device;

/// The fields that all formats have. Formats before 3 do not state their number.
#[derive(Debug, Deserialize)]
struct CommonPlanFields {
    #[serde(default)]
    format: u32,
    data: DataFacts,
}

/// Facts of the data that the run directory `path` was planned for.
///
/// # Errors
/// If the plan is missing or damaged.
pub fn data_facts(path: &Path) -> Result<DataFacts, RecordError> {
    Ok(read_file::<CommonPlanFields>(path)?.data)
}

/// The recorded plan of the run directory `path`; `None` if this version cannot read its format.
#[must_use]
pub fn as_written(path: &Path) -> Option<Plan> {
    read_plan(&path.join(PLAN)).ok()
}

/// The content of `plan.json` in the run directory `path`, of any format.
///
/// # Errors
/// If it is missing or damaged.
pub fn as_json(path: &Path) -> Result<serde_json::Value, RecordError> {
    read_file(path)
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

/// The plan of the run directory `path`. If its format is older, this version plans the same experiment and data again; the hash is then
/// that of this version, and the stored one is in the manifest. Its memory is without the workspace of kernels.
///
/// # Errors
/// If it is missing, damaged or of a newer format, or the older one's experiment is no longer understood.
pub fn read(path: &Path) -> Result<Plan, RecordError> {
    read_with_memory(path, KernelWorkspace::default())
}

/// [`read`], where a plan of an older format is to say how much memory it needs with these `kernels`.
///
/// # Errors
/// Those of [`read`].
pub fn read_with_memory(path: &Path, kernels: KernelWorkspace) -> Result<Plan, RecordError> {
    let file = path.join(PLAN);
    let common: CommonPlanFields = read_file(path)?;
    match common.format {
        PLAN_FORMAT => read_file(path),
        newer if newer > PLAN_FORMAT => Err(RecordError::damaged(
            &file,
            format!(
                "it has format {newer}, but this version of runner reads \
                formats up to {PLAN_FORMAT}"
            ),
        )),
        _ => compiled(path, &common.data, kernels),
    }
}

/// The experiment in `resolved.yaml` of the run directory `path`. Files that it names need not exist.
///
/// # Errors
/// If `resolved.yaml` is missing; its mistakes.
pub fn resolved_experiment(path: &Path) -> Result<Experiment> {
    Ok(runner_config::load_resolved(&run_dir::resolved_file(path)?)?.experiment)
}

/// The plan of the experiment of the run directory `path` with the data `facts`, on devices as the manifest names them.
///
/// # Errors
/// If `resolved.yaml` is not an experiment, or cannot be planned.
pub fn compiled(path: &Path, facts: &DataFacts, kernels: KernelWorkspace) -> Result<Plan, RecordError> {
    let file = path.join(RESOLVED);
    let loaded = runner_config::load_resolved(&file).map_err(|e| RecordError::damaged(&file, e.render(false)))?;
    let cluster = ClusterFacts { kernels, ..cluster(&run_dir::read_manifest(path)?) };
    runner_plan::compile(&loaded.experiment, facts, &cluster).map_err(|e| RecordError::damaged(&file, e.to_string()))
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
