//! Which device each rank gets.

use std::collections::{BTreeSet, HashMap};

use crate::error::PlanError;
use crate::ranks;
use runner_spec::cluster::{ClusterFacts, ComputeCapability, DeviceFacts, RankLocation};
use runner_spec::experiment::Precision;
use runner_spec::experiment::{AutoOr, DeviceChoice, DeviceName, Experiment, Parallel};
use runner_spec::mesh::Mesh;
use runner_spec::precision;
use runner_spec::program::Device;

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
    let on_gpus = || each_its_own(&cuda, world, cluster).map_err(|few| few.asked_for(mesh));
    let auto = experiment.device == DeviceChoice::Auto;
    let chosen = match (&experiment.parallel.devices, experiment.device) {
        (AutoOr::Given(names), _) => given(names, mesh, &cuda, cluster)?,
        (_, DeviceChoice::Cuda) if cuda.is_empty() => return Err(no_device("cuda", cluster)),
        (_, DeviceChoice::Cuda) => on_gpus()?,
        (_, DeviceChoice::Cpu) => on_cpus(&cpus, mesh, cluster, auto)?,
        // A machine without a described CPU has nothing else.
        (_, DeviceChoice::Auto) if cpus.is_empty() && !cuda.is_empty() => on_gpus()?,
        (_, DeviceChoice::Auto) => {
            let found = each_its_own(&cuda, world, cluster).map_err(Few::passed_over);
            match found.and_then(|found| unfit(&found, cluster).map_or(Ok(found), |why| Err(why.what))) {
                Ok(found) => found,
                Err(why) => {
                    notes.extend((!cuda.is_empty()).then(|| format!("device: auto takes the CPU: {why}")));
                    on_cpus(&cpus, mesh, cluster, auto)?
                }
            }
        }
    };
    match unfit(&chosen, cluster) {
        Some(Unfit { key, what }) => Err(PlanError::value(key, format!("{what}; device: cpu needs none of it"))),
        None => Ok(divided(&chosen)),
    }
}

/// Whether `cluster` has the devices that `experiment` asks for: known before its data is.
///
/// # Errors
/// As `compile`, of devices.
pub fn check_devices(experiment: &Experiment, cluster: &ClusterFacts) -> Result<(), PlanError> {
    let mesh = ranks::mesh(&experiment.parallel, experiment.batch.sequences)?;
    choose(experiment, mesh, cluster, &mut Vec::new()).map(drop)
}

/// A device of this machine for one process, which only reads what a run of `experiment` trained on `trained_on`: of several GPUs
/// that one, if it is there.
///
/// # Errors
/// If there is none of that kind.
pub fn device_for_reading(
    experiment: &Experiment,
    choice: DeviceChoice,
    trained_on: Device,
    cluster: &ClusterFacts,
    notes: &mut Vec<String>,
) -> Result<Device, PlanError> {
    let mut cluster = cluster.clone();
    if trained_on != Device::Cpu && cluster.devices.iter().any(|facts| facts.device == trained_on) {
        cluster.devices.retain(|facts| facts.device == trained_on || facts.device == Device::Cpu);
    }
    let alone = Experiment { device: choice, parallel: Parallel::single(), ..experiment.clone() };
    let chosen = choose(&alone, ranks::mesh(&alone.parallel, 1)?, &cluster, notes)?;
    Ok(chosen.first().map_or(Device::Cpu, |facts| facts.device))
}

/// Fewer GPUs than ranks: of a machine, or of all.
#[derive(Debug, Clone, Copy)]
struct Few {
    gpus: usize,
    ranks: usize,
    of_a_machine: bool,
}

impl Few {
    fn asked_for(self, mesh: Mesh) -> PlanError {
        if !self.of_a_machine {
            return too_few(mesh, self.gpus, "there are");
        }
        let message = format!("a machine has {} of the ranks, and a rank sees {}", self.ranks, gpus(self.gpus));
        PlanError::value("parallel", format!("{message}: start fewer on each, or show each rank its own GPU alone"))
    }

    fn passed_over(self) -> String {
        let of = if self.of_a_machine { " of a machine" } else { "" };
        format!("{} for {} ranks{of}", gpus(self.gpus), self.ranks)
    }
}

/// A GPU for each of `world` ranks. Of ranks that a launcher started each takes that of its number on its machine. Where a rank
/// sees one GPU alone, its launcher shows each its own: in the plan it has the rank's number, too.
fn each_its_own(cuda: &[&DeviceFacts], world: usize, cluster: &ClusterFacts) -> Result<Vec<DeviceFacts>, Few> {
    let seats = &cluster.rank_locations;
    if seats.is_empty() || cuda.is_empty() {
        let few = Few { gpus: cuda.len(), ranks: world, of_a_machine: false };
        return cuda.get(..world).map(|first| first.iter().map(|gpu| (*gpu).clone()).collect()).ok_or(few);
    }
    let ranks = seats.iter().map(|seat| seat.local_rank.saturating_add(1)).max().unwrap_or(0);
    if seats.len() < world || (cuda.len() < ranks && cuda.len() > 1 && !cluster.sharing) {
        return Err(Few { gpus: cuda.len(), ranks, of_a_machine: true });
    }
    let seated = |seat: &RankLocation| at(cuda[seat.local_rank % cuda.len()], *seat, cuda.len(), cluster);
    Ok(seats[..world].iter().map(seated).collect())
}

/// `gpu` for the rank at `seat`, which sees `visible` of them.
fn at(gpu: &DeviceFacts, seat: RankLocation, visible: usize, cluster: &ClusterFacts) -> DeviceFacts {
    let own = visible == 1 && !cluster.sharing;
    let device = if own { Device::Cuda(seat.local_rank) } else { gpu.device };
    DeviceFacts { node: seat.node, device, ..gpu.clone() }
}

/// The CPU for each rank, or a device of several that are no GPUs.
fn on_cpus(
    cpus: &[&DeviceFacts],
    mesh: Mesh,
    cluster: &ClusterFacts,
    auto: bool,
) -> Result<Vec<DeviceFacts>, PlanError> {
    let world = mesh.world_size();
    match cpus {
        [] => Err(no_device(if auto { "auto" } else { "cpu" }, cluster)),
        [cpu] => Ok(vec![(*cpu).clone(); world]),
        several if several.len() < world => Err(too_few(mesh, several.len(), "there are")),
        several => Ok(several[..world].iter().map(|cpu| (*cpu).clone()).collect()),
    }
}

/// The devices that the file lists: of a rank's machine, where a launcher started it.
fn given(
    names: &[DeviceName],
    mesh: Mesh,
    cuda: &[&DeviceFacts],
    cluster: &ClusterFacts,
) -> Result<Vec<DeviceFacts>, PlanError> {
    let one = |(rank, name): (usize, &DeviceName)| {
        let device = named(*name, cluster)?;
        Ok(match cluster.rank_locations.get(rank) {
            Some(seat) if device.device != Device::Cpu => at(device, *seat, cuda.len(), cluster),
            _ => device.clone(),
        })
    };
    let chosen = names.iter().enumerate().map(one).collect::<Result<Vec<_>, PlanError>>()?;
    if chosen.len() != mesh.world_size() {
        return Err(too_few(mesh, chosen.len(), "parallel.devices lists"));
    }
    let mut first = HashMap::new();
    for (rank, device) in chosen.iter().enumerate().filter(|(_, d)| d.device != Device::Cpu && !cluster.sharing) {
        if let Some(other) = first.insert((device.node, device.device), rank) {
            let message = format!(
                "{} is listed twice, for ranks {other} and {rank}: each rank has a GPU of its own (to try something, NCCL 2.30 \
                 lets processes share one where NCCL_MULTI_RANK_GPU_ENABLE=1 is set)",
                names[rank]
            );
            return Err(PlanError::value("parallel.devices", message));
        }
    }
    Ok(chosen)
}

/// Why ranks cannot compute on what was found for them.
struct Unfit {
    key: &'static str,
    what: String,
}

/// `None` if each of `chosen` has code for it, and several can talk.
fn unfit(chosen: &[DeviceFacts], cluster: &ClusterFacts) -> Option<Unfit> {
    let least = ComputeCapability::MINIMUM;
    let old = chosen.iter().find_map(|device| Some((device, device.compute_capability.filter(|c| *c < least)?)));
    if let Some((DeviceFacts { device, name, .. }, capability)) = old {
        let what = format!("GPUs need compute capability {least} or more, and {device} ({name}) has {capability}");
        return Some(Unfit { key: "device", what });
    }
    let several = chosen.len() > 1 && chosen.iter().any(|device| device.device != Device::Cpu);
    let why = cluster.no_nccl.as_ref().filter(|_| several)?;
    Some(Unfit { key: "parallel", what: format!("ranks on GPUs talk through NCCL: {why}") })
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
            return PlanError::NoGpuReason { key: "parallel.devices", wanted: name.to_string(), why: why.clone() };
        }
        let PlanError::NoDevice { has, .. } = no_device("", cluster) else {
            return PlanError::value("parallel.devices", format!("{name} is not there"));
        };
        PlanError::value("parallel.devices", format!("{name} is not on this machine, which has {has}"))
    })
}

fn no_device(wanted: &'static str, cluster: &ClusterFacts) -> PlanError {
    if let ("cuda", Some(why)) = (wanted, &cluster.no_gpu) {
        return PlanError::NoGpuReason { key: "device", wanted: wanted.to_owned(), why: why.clone() };
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

/// A device that several ranks share gives each a part of its threads, at least one, and a GPU a part of its memory.
fn divided(chosen: &[DeviceFacts]) -> Vec<DeviceFacts> {
    let mut sharers = HashMap::new();
    for device in chosen {
        *sharers.entry((device.node, device.device)).or_insert(0_usize) += 1;
    }
    let of = |device: &DeviceFacts| {
        let n = sharers.get(&(device.node, device.device)).copied().unwrap_or(1);
        let memory_bytes = match device.device {
            Device::Cpu => device.memory_bytes,
            Device::Cuda(_) => device.memory_bytes.map(|bytes| bytes / n as u64),
        };
        DeviceFacts { threads: (device.threads / n).max(1), memory_bytes, ..device.clone() }
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
        insta::assert_snapshot!(notes[0], @"device: auto takes the CPU: GPUs need compute capability 8.0 or more, and cuda:0 (NVIDIA Board) has 7.5");
        let (device, notes) = first(plan(boards(1, (8, 0)), two));
        assert_eq!(device, Device::Cpu);
        insta::assert_snapshot!(notes[0], @"device: auto takes the CPU: 1 GPU for 2 ranks");
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
        insta::assert_snapshot!(few, @"parallel: a machine has 4 of the ranks, and a rank sees 2 GPUs: start fewer on each, or show each rank its own GPU alone");
        let (device, notes) = first(launched(4, 2, |_, _| {}));
        assert_eq!(device, Device::Cpu);
        insta::assert_snapshot!(notes[0], @"device: auto takes the CPU: 2 GPUs for 4 ranks of a machine");
    }

    #[test]
    fn a_list_names_the_gpus_of_each_machine() {
        let names = |list: [usize; 4]| AutoOr::Given(list.map(DeviceName::Cuda).to_vec());
        let plan = launched(2, 2, |x, _| x.parallel.devices = names([1, 0, 1, 0])).unwrap();
        let cuda = |node, index| (node, Device::Cuda(index));
        assert_eq!(places(&plan), [cuda(0, 1), cuda(0, 0), cuda(1, 1), cuda(1, 0)]);
        let twice = launched(2, 2, |x, _| x.parallel.devices = names([0, 1, 1, 1])).unwrap_err();
        insta::assert_snapshot!(twice, @"parallel.devices: cuda:1 is listed twice, for ranks 2 and 3: each rank has a GPU of its own (to try something, NCCL 2.30 lets processes share one where NCCL_MULTI_RANK_GPU_ENABLE=1 is set)");
        let gone = launched(4, 1, |x, _| x.parallel.devices = names([0, 1, 2, 3])).unwrap_err();
        insta::assert_snapshot!(gone, @"parallel.devices: cuda:1 is not on this machine, which has cpu, cuda:0");
    }

    #[test]
    fn ranks_share_a_gpu_where_they_may() {
        let cluster = with_gpus(cluster(), boards(1, (8, 0)), 8);
        let mut experiment = experiment();
        experiment.parallel = Parallel { devices: AutoOr::Given(vec![DeviceName::Cuda(0); 2]), ..ddp(2) };
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
        insta::assert_snapshot!(notes[0], @"device: auto takes the CPU: ranks on GPUs talk through NCCL: no libnccl.so.2");
        let refused = plan(ddp(2), DeviceChoice::Cuda).unwrap_err();
        insta::assert_snapshot!(refused, @"parallel: ranks on GPUs talk through NCCL: no libnccl.so.2; device: cpu needs none of it");
    }

    #[test]
    fn what_is_asked_for_and_is_not_there() {
        let cuda = |x: &mut Experiment| x.device = DeviceChoice::Cuda;
        let fails = |found, change: fn(&mut Experiment)| plan(found, change).expect_err("it cannot be planned");
        insta::assert_snapshot!(fails(Err(NoGpuReason::NotBuilt), cuda), @"device: cuda is asked for, and this program was built without CUDA: build it with `make cuda`, or take device: cpu");
        let missing = NoGpuReason::Missing("no libcuda.so.1; `runner doctor` tells what is missing".to_owned());
        insta::assert_snapshot!(fails(Err(missing), cuda), @"device: cuda is asked for, and no GPU can be used here: no libcuda.so.1; `runner doctor` tells what is missing; device: cpu needs none");
        insta::assert_snapshot!(fails(boards(1, (8, 0)), |x| {
            x.device = DeviceChoice::Cuda;
            x.parallel = ddp(2);
        }), @"parallel: 2 replicas need a device each, and there are 1 device");
        insta::assert_snapshot!(fails(boards(1, (7, 0)), cuda), @"device: GPUs need compute capability 8.0 or more, and cuda:0 (NVIDIA Board) has 7.0; device: cpu needs none of it");
    }

    /// A busy GPU 0 is not taken by who only reads what another one trained.
    #[test]
    fn a_run_is_read_where_it_was_trained() {
        let read = |choice, trained_on, found| {
            let (cluster, mut notes) = (with_gpus(cluster(), found, 8), Vec::new());
            device_for_reading(&experiment(), choice, trained_on, &cluster, &mut notes).map_err(|e| e.to_string())
        };
        let (auto, cuda) = (DeviceChoice::Auto, DeviceChoice::Cuda);
        assert_eq!(read(auto, Device::Cuda(2), boards(4, (8, 0))), Ok(Device::Cuda(2)));
        assert_eq!(read(auto, Device::Cuda(2), boards(1, (8, 0))), Ok(Device::Cuda(0)), "on another machine");
        assert_eq!(read(cuda, Device::Cpu, boards(2, (8, 0))), Ok(Device::Cuda(0)));
        assert_eq!(read(auto, Device::Cuda(1), boards(2, (7, 5))), Ok(Device::Cpu));
        assert_eq!(read(DeviceChoice::Cpu, Device::Cuda(1), boards(2, (8, 0))), Ok(Device::Cpu));
    }

    /// Which of a machine's GPUs it is changes no number; whether it is one does.
    #[test]
    fn the_hash_knows_kinds_of_devices_alone() {
        let hash = |found| plan(found, |_| {}).expect("it is planned").hash;
        let second = boards(2, (8, 0)).map(|all| all[1..].to_vec());
        assert_eq!(hash(boards(1, (8, 0))), hash(second));
        assert_ne!(hash(boards(1, (8, 0))), hash(Err(NoGpuReason::NotBuilt)));
    }
}
