//! Assigns a device to each rank.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::error::{PlanError, Result, refuse};
use crate::ranks;
use runner_spec::cluster::{ClusterFacts, ComputeCapability, DeviceFacts, NoGpuReason, RankLocation};
use runner_spec::experiment::{AutoOr, DeviceChoice, Experiment, Parallel, Precision};
use runner_spec::format::counted;
use runner_spec::mesh::Mesh;
use runner_spec::precision;
use runner_spec::program::Device;

/// Chooses a device for each rank, in order. Ranks may share a CPU: then its threads are divided. Choices that the file left open are
/// explained in `notes`.
pub(crate) fn choose_devices(
    listed: &AutoOr<Vec<Device>>,
    choice: DeviceChoice,
    mesh: Mesh,
    cluster: &ClusterFacts,
    notes: &mut Vec<String>,
) -> Result<Vec<DeviceFacts>> {
    let world_size = mesh.world_size();
    let (cuda, cpus): (Vec<&DeviceFacts>, Vec<&DeviceFacts>) =
        cluster.devices.iter().partition(|d| matches!(d.device, Device::Cuda(_)));
    let on_gpus = || gpu_for_each_rank(&cuda, world_size, cluster).map_err(|short| short.refusal(mesh));
    let chosen = match (listed, choice) {
        (AutoOr::Given(listed), _) => listed_devices(listed, mesh, &cuda, cluster)?,
        (_, DeviceChoice::Cuda) if cuda.is_empty() => return Err(device_missing("device", "cuda", cluster)),
        (_, DeviceChoice::Cuda) => on_gpus()?,
        (_, DeviceChoice::Cpu) => on_cpus(&cpus, mesh, cluster, "cpu")?,
        // A machine without a described CPU has nothing else.
        (_, DeviceChoice::Auto) if cpus.is_empty() && !cuda.is_empty() => on_gpus()?,
        (_, DeviceChoice::Auto) => {
            let gpus = gpu_for_each_rank(&cuda, world_size, cluster).map_err(GpuShortage::describe);
            match gpus.and_then(|gpus| unfit_device(&gpus, cluster).map_or(Ok(gpus), |(_, why)| Err(why))) {
                Ok(gpus) => gpus,
                Err(why) => {
                    notes.extend((!cuda.is_empty()).then(|| format!("device: auto uses the CPU: {why}")));
                    on_cpus(&cpus, mesh, cluster, "auto")?
                }
            }
        }
    };
    if let Some((key, why)) = unfit_device(&chosen, cluster) {
        refuse!(key, "{why}; use device: cpu");
    }
    Ok(divide_shared(&chosen))
}

/// Checks that `cluster` has the devices that `experiment` asks for, for which no data need be prepared.
///
/// # Errors
/// Those of `compile` about devices.
pub fn check_devices(experiment: &Experiment, cluster: &ClusterFacts) -> Result<()> {
    let mesh = ranks::mesh(&experiment.parallel, experiment.batch.sequences)?;
    choose_devices(&experiment.parallel.devices, experiment.device, mesh, cluster, &mut Vec::new()).map(drop)
}

/// Chooses a device of this machine for one process that only reads a model. Of several GPUs it is `preferred`, on which the model was
/// trained, if the machine has it.
///
/// # Errors
/// If there is none of that kind.
pub fn device_for_reading(
    choice: DeviceChoice,
    preferred: Device,
    cluster: &ClusterFacts,
    notes: &mut Vec<String>,
) -> Result<Device> {
    let mut cluster = cluster.clone();
    if preferred != Device::Cpu && cluster.devices.iter().any(|facts| facts.device == preferred) {
        cluster.devices.retain(|facts| facts.device == preferred || facts.device == Device::Cpu);
    }
    let alone = Parallel::single();
    let chosen = choose_devices(&alone.devices, choice, ranks::mesh(&alone, 1)?, &cluster, notes)?;
    Ok(chosen.first().map_or(Device::Cpu, |facts| facts.device))
}

/// There are fewer GPUs than ranks, on one machine or in all.
#[derive(Debug, Clone, Copy)]
struct GpuShortage {
    gpus: usize,
    ranks: usize,
    on_one_machine: bool,
}

impl GpuShortage {
    fn refusal(self, mesh: Mesh) -> PlanError {
        if !self.on_one_machine {
            return too_few_devices(mesh, self.gpus);
        }
        let gpus = counted(self.gpus as u64, "GPU");
        let message = format!("a machine has {} of the ranks, but a rank sees {gpus}", self.ranks);
        PlanError::value(
            "parallel",
            format!("{message}; start fewer ranks on each machine, or let each rank see only its own GPU"),
        )
    }

    fn describe(self) -> String {
        let whose = if self.on_one_machine { " of a machine" } else { "" };
        format!("{} for {} ranks{whose}", counted(self.gpus as u64, "GPU"), self.ranks)
    }
}

/// Chooses a GPU for each of `world_size` ranks. A rank that a launcher started takes the GPU that has its number on its machine.
fn gpu_for_each_rank(
    cuda: &[&DeviceFacts],
    world_size: usize,
    cluster: &ClusterFacts,
) -> Result<Vec<DeviceFacts>, GpuShortage> {
    let locations = &cluster.rank_locations;
    if locations.is_empty() || cuda.is_empty() {
        let shortage = GpuShortage { gpus: cuda.len(), ranks: world_size, on_one_machine: false };
        return cuda.get(..world_size).map(|first| first.iter().map(|gpu| (*gpu).clone()).collect()).ok_or(shortage);
    }
    let ranks = locations.iter().map(|location| location.local_rank.saturating_add(1)).max().unwrap_or(0);
    if locations.len() < world_size || (cuda.len() < ranks && cuda.len() > 1 && !cluster.sharing) {
        return Err(GpuShortage { gpus: cuda.len(), ranks, on_one_machine: true });
    }
    let gpu_at = |at: &RankLocation| gpu_of_location(cuda[at.local_rank % cuda.len()], *at, cuda.len(), cluster);
    Ok(locations[..world_size].iter().map(gpu_at).collect())
}

/// `gpu` for the rank at `location`, which sees `visible` GPUs. If it sees one alone, its launcher shows each rank another: in the plan the
/// GPU then has the rank's number.
fn gpu_of_location(gpu: &DeviceFacts, location: RankLocation, visible: usize, cluster: &ClusterFacts) -> DeviceFacts {
    let own = visible == 1 && !cluster.sharing;
    let device = if own { Device::Cuda(location.local_rank) } else { gpu.device };
    DeviceFacts { node: location.node, device, ..gpu.clone() }
}

/// Chooses the CPU for each rank, or one of several devices that are not GPUs.
fn on_cpus(cpus: &[&DeviceFacts], mesh: Mesh, cluster: &ClusterFacts, wanted: &str) -> Result<Vec<DeviceFacts>> {
    let world_size = mesh.world_size();
    match cpus {
        [] => Err(device_missing("device", wanted, cluster)),
        [cpu] => Ok(vec![(*cpu).clone(); world_size]),
        several if several.len() < world_size => Err(too_few_devices(mesh, several.len())),
        several => Ok(several[..world_size].iter().map(|cpu| (*cpu).clone()).collect()),
    }
}

/// The devices that the file lists: those of a rank's machine, where a launcher started it.
fn listed_devices(
    listed: &[Device],
    mesh: Mesh,
    cuda: &[&DeviceFacts],
    cluster: &ClusterFacts,
) -> Result<Vec<DeviceFacts>> {
    let facts_of = |(rank, device): (usize, &Device)| {
        let found = cluster.devices.iter().find(|facts| facts.device == *device);
        let facts = found.ok_or_else(|| device_missing("parallel.devices", &device.to_string(), cluster))?;
        Ok(match cluster.rank_locations.get(rank) {
            Some(location) if *device != Device::Cpu => gpu_of_location(facts, *location, cuda.len(), cluster),
            _ => facts.clone(),
        })
    };
    let chosen = listed.iter().enumerate().map(facts_of).collect::<Result<Vec<_>>>()?;
    if chosen.len() != mesh.world_size() {
        let message =
            format!("{}, but parallel.devices lists {}", need_of_devices(mesh), counted(chosen.len() as u64, "device"));
        return Err(PlanError::value("parallel", message));
    }
    let mut first = HashMap::new();
    for (rank, device) in chosen.iter().enumerate().filter(|(_, d)| d.device != Device::Cpu && !cluster.sharing) {
        if let Some(other) = first.insert((device.node, device.device), rank) {
            refuse!(
                "parallel.devices",
                "{} is listed twice, for ranks {other} and {rank}; list a different GPU for each rank (to try something, NCCL 2.30 \
                 lets processes share one if NCCL_MULTI_RANK_GPU_ENABLE=1 is set)",
                listed[rank]
            );
        }
    }
    Ok(chosen)
}

/// The reason why ranks cannot compute on `chosen`, and the key that it is about. `None` if there are kernels for each device, and several
/// can communicate.
fn unfit_device(chosen: &[DeviceFacts], cluster: &ClusterFacts) -> Option<(&'static str, String)> {
    let least = ComputeCapability::MINIMUM;
    let old = chosen.iter().find_map(|device| Some((device, device.compute_capability.filter(|c| *c < least)?)));
    if let Some((DeviceFacts { device, name, .. }, capability)) = old {
        let why = format!("GPUs need compute capability {least} or more, but {device} ({name}) has {capability}");
        return Some(("device", why));
    }
    let several = chosen.len() > 1 && chosen.iter().any(|device| device.device != Device::Cpu);
    let why = cluster.no_nccl.as_ref().filter(|_| several)?;
    Some(("parallel", format!("ranks on GPUs communicate through NCCL: {why}")))
}

/// The devices of `cluster`, in words: equal machines are described together, and GPUs from the first to the last.
fn describe_present(cluster: &ClusterFacts) -> String {
    let mut machines: BTreeMap<usize, Vec<Device>> = BTreeMap::new();
    for facts in &cluster.devices {
        machines.entry(facts.node).or_default().push(facts.device);
    }
    let describe = |devices: &[Device]| {
        let gpus: Vec<&Device> = devices.iter().filter(|device| **device != Device::Cpu).collect();
        let cpu = devices.contains(&Device::Cpu).then(|| "cpu".to_owned());
        let gpus = match gpus.as_slice() {
            [first, .., last] if gpus.len() > 2 => vec![format!("{first} to {last}")],
            few => few.iter().map(ToString::to_string).collect(),
        };
        cpu.into_iter().chain(gpus).collect::<Vec<_>>().join(", ")
    };
    let count = machines.len();
    let mut devices = machines.into_values();
    match devices.next() {
        None => "on this machine, which has no device".to_owned(),
        Some(one) if count == 1 => format!("on this machine, which has {}", describe(&one)),
        Some(first) if devices.all(|other| other == first) => {
            format!("in this cluster, whose {count} machines have {} each", describe(&first))
        }
        Some(_) => format!("in this cluster, which has {} devices on {count} machines", cluster.devices.len()),
    }
}

/// The error that `cluster` does not have the device `wanted`, for which `key` asks.
fn device_missing(key: &'static str, wanted: &str, cluster: &ClusterFacts) -> PlanError {
    let why = match &cluster.no_gpu {
        Some(NoGpuReason::NotBuilt) if wanted.starts_with("cuda") => {
            "requested, but runner was built without CUDA; build it with `make cuda`, or use device: cpu".to_owned()
        }
        Some(NoGpuReason::Missing(what)) if wanted.starts_with("cuda") => {
            format!("requested, but no GPU can be used here: {what}; use device: cpu")
        }
        _ => {
            let has_gpus = cluster.devices.iter().any(|facts| facts.device != Device::Cpu);
            let advice = if wanted == "cpu" && has_gpus { "; device: auto uses its GPUs" } else { "" };
            format!("not {}{advice}", describe_present(cluster))
        }
    };
    PlanError::value(key, format!("{wanted} is {why}"))
}

/// The number of devices that the ranks of `mesh` need.
fn need_of_devices(mesh: Mesh) -> String {
    let ranks = match (mesh.stages, mesh.replicas) {
        (1, replicas) => format!("{replicas} replicas"),
        (stages, 1) => format!("{stages} stages"),
        (stages, replicas) => format!("{stages} stages · {replicas} replicas = {} ranks", stages * replicas),
    };
    format!("{ranks} need a device each")
}

fn too_few_devices(mesh: Mesh, devices: usize) -> PlanError {
    let verb = if devices == 1 { "is" } else { "are" };
    let there = format!("there {verb} {}", counted(devices as u64, "device"));
    PlanError::value("parallel", format!("{}, but {there}", need_of_devices(mesh)))
}

/// A device that several ranks share gives each a part of its threads, at least one, and a GPU a part of its memory.
fn divide_shared(chosen: &[DeviceFacts]) -> Vec<DeviceFacts> {
    let mut sharers = HashMap::new();
    for device in chosen {
        *sharers.entry((device.node, device.device)).or_insert(0_usize) += 1;
    }
    let part_of = |device: &DeviceFacts| {
        let n = sharers[&(device.node, device.device)];
        let memory_bytes = match device.device {
            Device::Cpu => device.memory_bytes,
            Device::Cuda(_) => device.memory_bytes.map(|bytes| bytes / n as u64),
        };
        DeviceFacts { threads: (device.threads / n).max(1), memory_bytes, ..device.clone() }
    };
    chosen.iter().map(part_of).collect()
}

/// The peak FLOP/s of all devices together, each counted once; `None` if one of them is unknown.
pub(crate) fn total_peak_flops(precision: Precision, hardware: &[DeviceFacts]) -> Option<f64> {
    let mut seen = HashSet::new();
    let distinct = hardware.iter().filter(|device| seen.insert((device.node, device.device)));
    distinct.map(|device| precision::peak(precision, device.device, &device.peak_flops)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile;
    use crate::testing::{cluster, data, experiment};
    use runner_machine::gpu_facts::GpuFacts;
    use runner_machine::local_cluster::with_gpus;
    use runner_spec::cluster::ComputeCapability;
    use runner_spec::cluster::NoGpuReason;
    use runner_spec::experiment::{Parallel, ParallelMode};
    use runner_spec::plan::Plan;

    fn plan(found: Result<Vec<GpuFacts>, NoGpuReason>, change: impl FnOnce(&mut Experiment)) -> Result<Plan, String> {
        let mut experiment = experiment();
        change(&mut experiment);
        compile(&experiment, &data(), &with_gpus(cluster(), found, 8)).map_err(|e| e.to_string())
    }

    #[expect(clippy::unnecessary_wraps, reason = "as a driver answers")]
    fn boards(count: usize, capability: (u32, u32)) -> Result<Vec<GpuFacts>, NoGpuReason> {
        let one = GpuFacts {
            index: 0,
            name: "NVIDIA Board".to_owned(),
            memory_bytes: 80 << 30,
            compute_capability: ComputeCapability { major: capability.0, minor: capability.1 },
            sms: 80,
            clock_khz: 1_500_000,
            memory_clock_khz: 900_000,
            bus_width: 4096,
        };
        Ok((0..count).map(|index| GpuFacts { index, ..one.clone() }).collect())
    }

    fn first(plan: Result<Plan, String>) -> (Device, Vec<String>) {
        let plan = plan.expect("it is planned");
        (plan.ranks[0].device, plan.notes.into_iter().filter(|n| n.starts_with("device")).collect())
    }

    fn ddp(replicas: usize) -> Parallel {
        Parallel { mode: ParallelMode::Ddp, replicas, ..Parallel::single() }
    }

    /// 4 ranks under ddp, on machines of `each` ranks that see `visible` GPUs.
    fn launched(
        each: usize,
        visible: usize,
        change: impl FnOnce(&mut Experiment, &mut ClusterFacts),
    ) -> Result<Plan, String> {
        let mut experiment = experiment();
        experiment.parallel = ddp(4);
        let seats = (0..4).map(|rank| RankLocation { node: rank / each, local_rank: rank % each }).collect();
        let mut cluster = ClusterFacts { rank_locations: seats, ..with_gpus(cluster(), boards(visible, (8, 0)), 8) };
        change(&mut experiment, &mut cluster);
        compile(&experiment, &data(), &cluster).map_err(|e| e.to_string())
    }

    fn places(plan: &Plan) -> Vec<(usize, Device)> {
        plan.ranks.iter().map(|rank| (rank.hardware.node, rank.device)).collect()
    }

    #[test]
    fn auto_takes_a_gpu_that_can() {
        let auto = |_: &mut Experiment| {};
        let two = |x: &mut Experiment| x.parallel = ddp(2);
        assert_eq!(first(plan(boards(1, (8, 0)), auto)), (Device::Cuda(0), vec![]));
        assert_eq!(first(plan(boards(1, (8, 0)), |x| x.precision = Precision::Bf16)), (Device::Cuda(0), vec![]));
        assert_eq!(first(plan(Err(NoGpuReason::NotBuilt), auto)), (Device::Cpu, vec![]));
        // The kernels have no code for it, whatever the precision.
        let (device, notes) = first(plan(boards(1, (7, 5)), auto));
        assert_eq!(device, Device::Cpu);
        insta::assert_snapshot!(notes[0], @"device: auto uses the CPU: GPUs need compute capability 8.0 or more, but cuda:0 (NVIDIA Board) has 7.5");
        let (device, notes) = first(plan(boards(1, (8, 0)), two));
        assert_eq!(device, Device::Cpu);
        insta::assert_snapshot!(notes[0], @"device: auto uses the CPU: 1 GPU for 2 ranks");
    }

    #[test]
    fn ranks_of_a_launcher_take_the_gpus_of_their_machines() {
        let cuda = |node, index| (node, Device::Cuda(index));
        let two_machines = vec![cuda(0, 0), cuda(0, 1), cuda(1, 0), cuda(1, 1)];
        for choice in [DeviceChoice::Auto, DeviceChoice::Cuda] {
            // One GPU: the launcher shows each rank its own. Two: it shows all. Four: there are more.
            for visible in [1, 2, 4] {
                let plan = launched(2, visible, |x, _| x.device = choice).unwrap();
                assert_eq!(places(&plan), two_machines, "{visible}");
            }
        }
        let alone = launched(1, 1, |_, _| {}).unwrap();
        assert_eq!(places(&alone), [cuda(0, 0), cuda(1, 0), cuda(2, 0), cuda(3, 0)]);
        // It is the same run, however the ranks are spread.
        assert_eq!(alone.hash, launched(2, 2, |_, _| {}).unwrap().hash);
        let peak = |plan: &Plan| plan.ranks[0].program.peak_flops.unwrap();
        assert_eq!(peak(&alone), peak(&launched(4, 1, |_, _| {}).unwrap()));
        let few = launched(4, 2, |x, _| x.device = DeviceChoice::Cuda).unwrap_err();
        insta::assert_snapshot!(few, @"parallel: a machine has 4 of the ranks, but a rank sees 2 GPUs; start fewer ranks on each machine, or let each rank see only its own GPU");
        let (device, notes) = first(launched(4, 2, |_, _| {}));
        assert_eq!(device, Device::Cpu);
        insta::assert_snapshot!(notes[0], @"device: auto uses the CPU: 2 GPUs for 4 ranks of a machine");
    }

    #[test]
    fn a_list_names_the_gpus_of_each_machine() {
        let names = |list: [usize; 4]| AutoOr::Given(list.map(Device::Cuda).to_vec());
        let plan = launched(2, 2, |x, _| x.parallel.devices = names([1, 0, 1, 0])).unwrap();
        let cuda = |node, index| (node, Device::Cuda(index));
        assert_eq!(places(&plan), [cuda(0, 1), cuda(0, 0), cuda(1, 1), cuda(1, 0)]);
        let twice = launched(2, 2, |x, _| x.parallel.devices = names([0, 1, 1, 1])).unwrap_err();
        insta::assert_snapshot!(twice, @"parallel.devices: cuda:1 is listed twice, for ranks 2 and 3; list a different GPU for each rank (to try something, NCCL 2.30 lets processes share one if NCCL_MULTI_RANK_GPU_ENABLE=1 is set)");
        let gone = launched(4, 1, |x, _| x.parallel.devices = names([0, 1, 2, 3])).unwrap_err();
        insta::assert_snapshot!(gone, @"parallel.devices: cuda:1 is not on this machine, which has cpu, cuda:0");
    }

    #[test]
    fn ranks_share_a_gpu_where_they_may() {
        let cluster = with_gpus(cluster(), boards(1, (8, 0)), 8);
        let mut experiment = experiment();
        experiment.parallel = Parallel { devices: AutoOr::Given(vec![Device::Cuda(0); 2]), ..ddp(2) };
        let refused = compile(&experiment, &data(), &cluster).unwrap_err().to_string();
        assert!(refused.starts_with("parallel.devices: cuda:0 is listed twice, for ranks 0 and 1"), "{refused}");
        let plan = compile(&experiment, &data(), &ClusterFacts { sharing: true, ..cluster }).unwrap();
        assert_eq!(places(&plan), [(0, Device::Cuda(0)); 2]);
        assert_eq!(plan.ranks[1].hardware.memory_bytes, Some(40 << 30), "half of it");
        let plan = launched(4, 2, |_, cluster| cluster.sharing = true).unwrap();
        assert_eq!(places(&plan), [0, 1, 0, 1].map(|index| (0, Device::Cuda(index))));
    }

    #[test]
    fn several_gpus_need_nccl() {
        let cluster =
            ClusterFacts { no_nccl: Some("no libnccl.so.2".to_owned()), ..with_gpus(cluster(), boards(2, (8, 0)), 8) };
        let plan = |parallel, device| {
            let mut experiment = experiment();
            (experiment.parallel, experiment.device) = (parallel, device);
            compile(&experiment, &data(), &cluster).map_err(|e| e.to_string())
        };
        assert_eq!(first(plan(Parallel::single(), DeviceChoice::Cuda)), (Device::Cuda(0), vec![]));
        let (device, notes) = first(plan(ddp(2), DeviceChoice::Auto));
        assert_eq!(device, Device::Cpu);
        insta::assert_snapshot!(notes[0], @"device: auto uses the CPU: ranks on GPUs communicate through NCCL: no libnccl.so.2");
        let refused = plan(ddp(2), DeviceChoice::Cuda).unwrap_err();
        insta::assert_snapshot!(refused, @"parallel: ranks on GPUs communicate through NCCL: no libnccl.so.2; use device: cpu");
    }

    #[test]
    fn requested_devices_that_do_not_exist() {
        let cuda = |x: &mut Experiment| x.device = DeviceChoice::Cuda;
        let fails = |found, change: fn(&mut Experiment)| plan(found, change).expect_err("it cannot be planned");
        insta::assert_snapshot!(fails(Err(NoGpuReason::NotBuilt), cuda), @"device: cuda is requested, but runner was built without CUDA; build it with `make cuda`, or use device: cpu");
        let missing = NoGpuReason::Missing("no libcuda.so.1; `runner doctor` shows what is missing".to_owned());
        insta::assert_snapshot!(fails(Err(missing), cuda), @"device: cuda is requested, but no GPU can be used here: no libcuda.so.1; `runner doctor` shows what is missing; use device: cpu");
        insta::assert_snapshot!(fails(boards(1, (8, 0)), |x| {
            x.device = DeviceChoice::Cuda;
            x.parallel = ddp(2);
        }), @"parallel: 2 replicas need a device each, but there is 1 device");
        insta::assert_snapshot!(fails(boards(1, (7, 0)), cuda), @"device: GPUs need compute capability 8.0 or more, but cuda:0 (NVIDIA Board) has 7.0; use device: cpu");
    }

    /// GPU 0 may be busy: a command that only reads what a run trained does not use it.
    #[test]
    fn a_run_is_read_where_it_was_trained() {
        let read = |choice, trained_on, found| {
            let (cluster, mut notes) = (with_gpus(cluster(), found, 8), Vec::new());
            device_for_reading(choice, trained_on, &cluster, &mut notes).map_err(|e| e.to_string())
        };
        let (auto, cuda) = (DeviceChoice::Auto, DeviceChoice::Cuda);
        assert_eq!(read(auto, Device::Cuda(2), boards(4, (8, 0))), Ok(Device::Cuda(2)));
        assert_eq!(read(auto, Device::Cuda(2), boards(1, (8, 0))), Ok(Device::Cuda(0)), "on another machine");
        assert_eq!(read(cuda, Device::Cpu, boards(2, (8, 0))), Ok(Device::Cuda(0)));
        assert_eq!(read(auto, Device::Cuda(1), boards(2, (7, 5))), Ok(Device::Cpu));
        assert_eq!(read(DeviceChoice::Cpu, Device::Cuda(1), boards(2, (8, 0))), Ok(Device::Cpu));
    }

    #[test]
    fn devices_of_a_cluster_are_grouped() {
        let cpu = DeviceFacts { node: 0, ..cluster().devices.remove(0) };
        let with = |devices: &[(usize, Device)]| {
            let facts = |&(node, device): &(usize, Device)| DeviceFacts { node, device, ..cpu.clone() };
            describe_present(&ClusterFacts { devices: devices.iter().map(facts).collect(), ..cluster() })
        };
        let node = |node: usize| (0..8).map(move |index| (node, Device::Cuda(index)));
        let all: Vec<_> = (0..128).flat_map(node).collect();
        assert_eq!(with(&all), "in this cluster, whose 128 machines have cuda:0 to cuda:7 each");
        assert_eq!(with(&all[..8]), "on this machine, which has cuda:0 to cuda:7");
        assert_eq!(with(&all[..10]), "in this cluster, which has 10 devices on 2 machines");
        assert_eq!(with(&[(0, Device::Cpu), (0, Device::Cuda(0))]), "on this machine, which has cpu, cuda:0");
        assert_eq!(with(&[]), "on this machine, which has no device");
    }

    /// The numbers depend on the kind of the device, and not on its index.
    #[test]
    fn the_hash_depends_on_kinds_of_devices_alone() {
        let hash = |found| plan(found, |_| {}).expect("it is planned").hash;
        let second = boards(2, (8, 0)).map(|all| all[1..].to_vec());
        assert_eq!(hash(boards(1, (8, 0))), hash(second));
        assert_ne!(hash(boards(1, (8, 0))), hash(Err(NoGpuReason::NotBuilt)));
    }
}
