//! Which device each rank gets.

use std::collections::BTreeSet;

use crate::config::experiment::{AutoOr, DeviceChoice, DeviceName, Experiment};
use crate::plan::error::PlanError;
use crate::plan::facts::{ClusterFacts, DeviceFacts};
use crate::plan::mesh::Mesh;
use crate::plan::precision;
use crate::plan::program::{Device, Precision};

/// One device for each rank, in order. A CPU may be shared: then its threads are divided.
pub(crate) fn choose(
    experiment: &Experiment,
    mesh: Mesh,
    cluster: &ClusterFacts,
) -> Result<Vec<DeviceFacts>, PlanError> {
    let world = mesh.world_size();
    let (cuda, cpus): (Vec<&DeviceFacts>, Vec<&DeviceFacts>) =
        cluster.devices.iter().partition(|d| matches!(d.device, Device::Cuda(_)));
    if let AutoOr::Given(names) = &experiment.parallel.devices {
        let chosen = names.iter().map(|name| named(*name, cluster)).collect::<Result<Vec<_>, _>>()?;
        if chosen.len() != world {
            return Err(too_few(mesh, chosen.len(), "parallel.devices lists"));
        }
        return Ok(divided(&chosen));
    }
    let accelerators = match experiment.device {
        DeviceChoice::Cpu => false,
        DeviceChoice::Cuda => true,
        DeviceChoice::Auto => !cuda.is_empty(),
    };
    let (wanted, found) = match (experiment.device, accelerators) {
        (DeviceChoice::Auto, true) => ("auto", &cuda),
        (_, true) => ("cuda", &cuda),
        (DeviceChoice::Auto, false) => ("auto", &cpus),
        (_, false) => ("cpu", &cpus),
    };
    match found.as_slice() {
        [] => Err(no_device(wanted, cluster)),
        [cpu] if !accelerators => Ok(divided(&vec![*cpu; world])),
        several if several.len() < world => Err(too_few(mesh, several.len(), "there are")),
        several => Ok(divided(&several[..world])),
    }
}

fn named(name: DeviceName, cluster: &ClusterFacts) -> Result<&DeviceFacts, PlanError> {
    let wanted = match name {
        DeviceName::Cpu => Device::Cpu,
        DeviceName::Cuda(index) => Device::Cuda(index),
    };
    let found = cluster.devices.iter().find(|d| d.device == wanted);
    found.ok_or_else(|| {
        let PlanError::NoDevice { has, .. } = no_device("", cluster) else {
            return PlanError::value("parallel.devices", format!("{name} is not there"));
        };
        PlanError::value("parallel.devices", format!("{name} is not on this machine, which has {has}"))
    })
}

fn no_device(wanted: &'static str, cluster: &ClusterFacts) -> PlanError {
    let names: Vec<String> = cluster.devices.iter().take(16).map(|d| d.device.to_string()).collect();
    let has = if names.is_empty() { "no device".to_owned() } else { names.join(", ") };
    PlanError::NoDevice { wanted, has }
}

fn too_few(mesh: Mesh, devices: usize, what: &str) -> PlanError {
    let ranks = match (mesh.stages, mesh.replicas) {
        (1, replicas) => format!("{replicas} replicas"),
        (stages, 1) => format!("{stages} stages"),
        (stages, replicas) => format!("{stages} stages · {replicas} replicas = {} ranks", stages * replicas),
    };
    let s = if devices == 1 { "" } else { "s" };
    PlanError::value("parallel", format!("{ranks} need a device each, and {what} {devices} device{s}"))
}

/// A device that several ranks share gives each a part of its threads, at least one.
fn divided(chosen: &[&DeviceFacts]) -> Vec<DeviceFacts> {
    let mut sharers = std::collections::HashMap::new();
    for device in chosen {
        *sharers.entry((device.node, device.device)).or_insert(0_usize) += 1;
    }
    let of = |device: &&DeviceFacts| {
        let n = sharers.get(&(device.node, device.device)).copied().unwrap_or(1);
        DeviceFacts { threads: (device.threads / n).max(1), ..(*device).clone() }
    };
    chosen.iter().map(of).collect()
}

/// The peak FLOP/s of all devices together, each counted once; `None` if one of them is not known.
pub(crate) fn peak(precision: Precision, hardware: &[DeviceFacts]) -> Option<f64> {
    let mut seen = BTreeSet::new();
    let mut sum = 0.0;
    for device in hardware {
        let key = (device.node, device.device.to_string());
        if seen.insert(key) {
            sum += precision::peak(precision, device.device, &device.peak_flops)?;
        }
    }
    Some(sum)
}
