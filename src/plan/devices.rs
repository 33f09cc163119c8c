//! Which device each rank gets.

use std::collections::BTreeSet;

use crate::config::experiment::{AutoOr, DeviceChoice, DeviceName, Experiment};
use crate::plan::error::PlanError;
use crate::plan::facts::{ClusterFacts, ComputeCapability, DeviceFacts};
use crate::plan::mesh::Mesh;
use crate::plan::precision;
use crate::plan::program::{Device, Precision};

/// One device for each rank, in order. A CPU may be shared: then its threads are divided. What was chosen for the reader goes
/// to `notes`.
pub(crate) fn choose(
    experiment: &Experiment,
    mesh: Mesh,
    cluster: &ClusterFacts,
    notes: &mut Vec<String>,
) -> Result<Vec<DeviceFacts>, PlanError> {
    let world = mesh.world_size();
    let (cuda, cpus): (Vec<&DeviceFacts>, Vec<&DeviceFacts>) =
        cluster.devices.iter().partition(|d| matches!(d.device, Device::Cuda(_)));
    if let AutoOr::Given(names) = &experiment.parallel.devices {
        let chosen = names.iter().map(|name| named(*name, cluster)).collect::<Result<Vec<_>, _>>()?;
        if chosen.len() != world {
            return Err(too_few(mesh, chosen.len(), "parallel.devices lists"));
        }
        can_all(&chosen, experiment.precision)?;
        return Ok(divided(&chosen));
    }
    let found = match experiment.device {
        DeviceChoice::Cuda if cuda.is_empty() => return Err(no_device("cuda", cluster)),
        DeviceChoice::Cuda if cuda.len() < world => return Err(too_few(mesh, cuda.len(), "there are")),
        DeviceChoice::Cuda => cuda,
        DeviceChoice::Cpu => cpus,
        // A machine without a described CPU has nothing else.
        DeviceChoice::Auto if cpus.is_empty() => cuda,
        DeviceChoice::Auto => match why_not(&cuda, world, experiment.precision) {
            None => cuda,
            Some(why) => {
                notes.extend((!cuda.is_empty()).then(|| format!("device: auto takes the CPU: {why}")));
                cpus
            }
        },
    };
    let auto = experiment.device == DeviceChoice::Auto;
    let chosen = match found.as_slice() {
        [] => return Err(no_device(if auto { "auto" } else { "cpu" }, cluster)),
        [cpu] if cpu.device == Device::Cpu => vec![*cpu; world],
        several if several.len() < world => return Err(too_few(mesh, several.len(), "there are")),
        several => several[..world].to_vec(),
    };
    can_all(&chosen, experiment.precision)?;
    Ok(divided(&chosen))
}

/// Why `auto` does not take the GPUs `cuda` for `world` ranks; `None` if it does.
fn why_not(cuda: &[&DeviceFacts], world: usize, precision: Precision) -> Option<String> {
    if cuda.len() < world {
        return Some(format!("{} for {world} ranks", gpus(cuda.len())));
    }
    cuda[..world].iter().find_map(|gpu| incapable(gpu, precision))
}

/// Why `device` does not compute in `precision`.
fn incapable(device: &DeviceFacts, precision: Precision) -> Option<String> {
    let capability = device.compute_capability.filter(|c| *c < ComputeCapability::BF16)?;
    let (name, least) = (&device.name, ComputeCapability::BF16);
    (precision == Precision::Bf16).then(|| {
        format!(
            "bf16 needs a GPU of compute capability {least} or more, and {} ({name}) has {capability}",
            device.device
        )
    })
}

/// Ranks are given only what they can do.
fn can_all(chosen: &[&DeviceFacts], precision: Precision) -> Result<(), PlanError> {
    match chosen.iter().find_map(|device| incapable(device, precision)) {
        Some(why) => Err(PlanError::value("precision", format!("{why}: take precision: fp32, or device: cpu"))),
        None => Ok(()),
    }
}

fn gpus(count: usize) -> String {
    format!("{count} GPU{}", if count == 1 { "" } else { "s" })
}

fn named(name: DeviceName, cluster: &ClusterFacts) -> Result<&DeviceFacts, PlanError> {
    let wanted = match name {
        DeviceName::Cpu => Device::Cpu,
        DeviceName::Cuda(index) => Device::Cuda(index),
    };
    let found = cluster.devices.iter().find(|d| d.device == wanted);
    found.ok_or_else(|| {
        if let (Device::Cuda(_), Some(why)) = (wanted, &cluster.no_gpu) {
            return PlanError::NoGpu { key: "parallel.devices", wanted: name.to_string(), why: why.clone() };
        }
        let PlanError::NoDevice { has, .. } = no_device("", cluster) else {
            return PlanError::value("parallel.devices", format!("{name} is not there"));
        };
        PlanError::value("parallel.devices", format!("{name} is not on this machine, which has {has}"))
    })
}

fn no_device(wanted: &'static str, cluster: &ClusterFacts) -> PlanError {
    if let ("cuda", Some(why)) = (wanted, &cluster.no_gpu) {
        return PlanError::NoGpu { key: "device", wanted: wanted.to_owned(), why: why.clone() };
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::experiment::{Parallel, ParallelMode};
    use crate::plan::Plan;
    use crate::plan::compile;
    use crate::plan::facts::NoGpu;
    use crate::plan::gpu_facts::GpuFacts;
    use crate::plan::gpu_facts::tests::gpu;
    use crate::plan::tests::{cluster, data, experiment};

    fn plan(found: Result<Vec<GpuFacts>, NoGpu>, change: impl FnOnce(&mut Experiment)) -> Result<Plan, String> {
        let mut experiment = experiment();
        change(&mut experiment);
        compile(&experiment, &data(), &cluster().with_gpus(found, 8)).map_err(|e| e.to_string())
    }

    fn boards(count: usize, capability: (u32, u32)) -> Result<Vec<GpuFacts>, NoGpu> {
        let one = gpu("NVIDIA Board", capability, 80, [1_500_000, 900_000], 4096);
        Ok((0..count).map(|index| GpuFacts { index, ..one.clone() }).collect())
    }

    fn first(plan: Result<Plan, String>) -> (Device, Vec<String>) {
        let plan = plan.expect("it is planned");
        (plan.ranks[0].device, plan.notes.into_iter().filter(|n| n.starts_with("device")).collect())
    }

    #[test]
    fn auto_takes_a_gpu_that_can() {
        let auto = |_: &mut Experiment| {};
        let bf16 = |x: &mut Experiment| x.precision = Precision::Bf16;
        let two =
            |x: &mut Experiment| x.parallel = Parallel { mode: ParallelMode::Ddp, replicas: 2, ..Parallel::single() };
        assert_eq!(first(plan(boards(1, (7, 0)), auto)), (Device::Cuda(0), vec![]));
        assert_eq!(first(plan(boards(1, (8, 0)), bf16)), (Device::Cuda(0), vec![]));
        assert_eq!(first(plan(Err(NoGpu::NotBuilt), auto)), (Device::Cpu, vec![]));
        let (device, notes) = first(plan(boards(1, (7, 0)), bf16));
        assert_eq!((device, notes.len()), (Device::Cpu, 1), "{notes:?}");
        let (device, notes) = first(plan(boards(1, (8, 0)), two));
        assert_eq!(device, Device::Cpu);
        insta::assert_snapshot!(notes[0], @"device: auto takes the CPU: 1 GPU for 2 ranks");
    }

    #[test]
    fn what_is_asked_for_and_is_not_there() {
        let cuda = |x: &mut Experiment| x.device = DeviceChoice::Cuda;
        let fails = |found, change: fn(&mut Experiment)| plan(found, change).expect_err("it cannot be planned");
        insta::assert_snapshot!(fails(Err(NoGpu::NotBuilt), cuda), @"device: cuda is asked for, and this program was built without CUDA: build it with `make cuda`, or take device: cpu");
        let missing = NoGpu::Missing("no libcuda.so.1; `runner doctor` tells what is missing".to_owned());
        insta::assert_snapshot!(fails(Err(missing), cuda), @"device: cuda is asked for, and no GPU can be used here: no libcuda.so.1; `runner doctor` tells what is missing; device: cpu needs none");
        insta::assert_snapshot!(fails(boards(1, (8, 0)), |x| {
            x.device = DeviceChoice::Cuda;
            x.parallel = Parallel { mode: ParallelMode::Ddp, replicas: 2, ..Parallel::single() };
        }), @"parallel: 2 replicas need a device each, and there are 1 device");
        insta::assert_snapshot!(fails(boards(1, (7, 0)), |x| {
            x.device = DeviceChoice::Cuda;
            x.precision = Precision::Bf16;
        }), @"precision: bf16 needs a GPU of compute capability 8.0 or more, and cuda:0 (NVIDIA Board) has 7.0: take precision: fp32, or device: cpu");
    }

    /// Which of a machine's GPUs it is changes no number; whether it is one does.
    #[test]
    fn the_hash_knows_kinds_of_devices_alone() {
        let hash = |found| plan(found, |_| {}).expect("it is planned").hash;
        let second = boards(2, (8, 0)).map(|all| all[1..].to_vec());
        assert_eq!(hash(boards(1, (8, 0))), hash(second));
        assert_ne!(hash(boards(1, (8, 0))), hash(Err(NoGpu::NotBuilt)));
    }
}
