//! This machine as the planner sees it: its CPU and its GPUs.

use std::fs;

use crate::gpu::GpuFacts;
#[cfg(feature = "cuda")]
use runner_spec::cluster::ComputeCapability;
use runner_spec::cluster::{ClusterFacts, Device, DeviceFacts, NoGpu, PeakFlops, RankSeat};

/// With `1` NCCL 2.30 and newer lets ranks share a GPU.
const SHARING: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

/// This machine: its CPU, with `threads` threads for the rank, and the GPUs that this program can use. A CPU's peak FLOP/s is not
/// guessed: it stays unknown until someone says it.
#[must_use]
pub fn local_cluster(threads: usize) -> ClusterFacts {
    let mut facts = with_gpus(cpu_cluster(threads), find_gpus(), threads);
    facts.sharing = std::env::var(SHARING).is_ok_and(|value| value.trim() == "1");
    // NCCL is a library of some size: it is not opened for one rank.
    let several = facts.gpus() > 1 || (facts.sharing && facts.gpus() > 0);
    facts.no_nccl = several.then(nccl).and_then(Result::err);
    facts
}

/// `cluster`, of which each rank that a launcher started sees a machine like this one: rank r is at `seats[r]`.
#[must_use]
pub fn with_seats(mut cluster: ClusterFacts, seats: Vec<RankSeat>) -> ClusterFacts {
    let asked = cluster.gpus() > 1 || cluster.sharing;
    if !asked && cluster.gpus() > 0 && seats.len() > 1 {
        cluster.no_nccl = nccl().err();
    }
    ClusterFacts { seats, ..cluster }
}

/// This machine's CPU alone.
#[must_use]
pub fn cpu_cluster(threads: usize) -> ClusterFacts {
    let cpu = DeviceFacts {
        device: Device::Cpu,
        node: 0,
        name: cpu_name(),
        threads: threads.max(1),
        memory_bytes: memory_bytes(),
        peak_flops: PeakFlops::default(),
        compute_capability: None,
        estimated: false,
    };
    ClusterFacts { devices: vec![cpu], ..ClusterFacts::default() }
}

/// `cluster`, one machine, with the GPUs that were `found`, which share the host's `threads`.
#[must_use]
pub fn with_gpus(mut cluster: ClusterFacts, found: Result<Vec<GpuFacts>, NoGpu>, threads: usize) -> ClusterFacts {
    match found {
        Ok(gpus) => {
            let each = threads / gpus.len().max(1);
            cluster.devices.extend(gpus.iter().map(|gpu| gpu.device(each)));
            let rates = gpus.iter().filter_map(|gpu| Some((gpu.name.clone(), gpu.rates()?)));
            cluster.rates.devices.extend(rates);
            cluster.rates.gpu_links = gpus.first().and_then(GpuFacts::links);
        }
        Err(why) => cluster.no_gpu = Some(why),
    }
    cluster
}

/// The GPUs that the driver shows to this process, by the numbers that it gives them. Nothing is opened on them.
#[cfg(feature = "cuda")]
fn find_gpus() -> Result<Vec<GpuFacts>, NoGpu> {
    // A function of a library that is not there would end the process.
    crate::doctor::usable().map_err(NoGpu::Missing)?;
    asked().map_err(|error| NoGpu::Missing(format!("the driver says {error}; `runner doctor` tells what is missing")))
}

/// Without CUDA there is nothing to ask.
#[cfg(not(feature = "cuda"))]
fn find_gpus() -> Result<Vec<GpuFacts>, NoGpu> {
    Err(NoGpu::NotBuilt)
}

/// Whether GPUs can talk through NCCL.
#[cfg(feature = "nccl")]
fn nccl() -> Result<(), String> {
    crate::doctor::usable_nccl()
}

/// As above: this build has none.
#[cfg(not(feature = "nccl"))]
fn nccl() -> Result<(), String> {
    Err("this program was built without it: build it with `--features nccl`".to_owned())
}

#[cfg(feature = "cuda")]
#[expect(unsafe_code, reason = "FFI")]
fn asked() -> Result<Vec<GpuFacts>, cudarc::driver::DriverError> {
    use cudarc::driver::result::{device, init};
    use cudarc::driver::sys::CUdevice_attribute as Attribute;
    init()?;
    let one = |index: i32| {
        let gpu = device::get(index)?;
        // SAFETY: `gpu` is one that the driver has just named.
        let attribute = |which| unsafe { device::get_attribute(gpu, which) };
        let number = |which| attribute(which).map_or(0, i32::unsigned_abs);
        Ok(GpuFacts {
            index: index.unsigned_abs() as usize,
            name: device::get_name(gpu)?,
            // SAFETY: as above.
            memory_bytes: unsafe { device::total_mem(gpu) }? as u64,
            // Only a context would tell.
            free_bytes: 0,
            compute_capability: ComputeCapability {
                major: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?.unsigned_abs(),
                minor: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?.unsigned_abs(),
            },
            sms: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            clock_khz: number(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
            memory_clock_khz: number(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE),
            bus_width: number(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH),
        })
    };
    (0..device::get_count()?).map(one).collect()
}

fn cpu_name() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    field.map_or_else(|| format!("{} CPU", std::env::consts::ARCH), |(_, name)| name.trim().to_owned())
}

/// Memory this process may use: the machine's, or its control group's limit where that is smaller.
fn memory_bytes() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let machine = parse_meminfo(&info)?;
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    Some(group.map_or(machine, |limit: u64| limit.min(machine)))
}

fn parse_meminfo(info: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::tests::gpu;

    #[test]
    fn reads_the_kernel_table() {
        assert_eq!(parse_meminfo("MemTotal:       24000 kB\nMemFree: 1 kB\n"), Some(24_000 * 1024));
        assert_eq!(parse_meminfo("MemTotal: lots\n"), None);
        assert_eq!(parse_meminfo(""), None);
    }

    #[test]
    fn gpus_that_were_found_are_devices_with_their_speeds() {
        let gpu = |index, name: &str| GpuFacts { index, ..gpu(name, (9, 0), 132, [1_980_000, 2_619_000], 5120) };
        let found = vec![gpu(0, "NVIDIA H100 80GB HBM3"), gpu(1, "NVIDIA H100 80GB HBM3")];
        let facts = with_gpus(cpu_cluster(16), Ok(found), 16);
        let devices: Vec<(Device, usize)> = facts.devices.iter().map(|d| (d.device, d.threads)).collect();
        assert_eq!(devices, [(Device::Cpu, 16), (Device::Cuda(0), 8), (Device::Cuda(1), 8)]);
        assert!(facts.rates.devices.contains_key("NVIDIA H100 80GB HBM3") && facts.rates.gpu_links.is_some());
        assert_eq!(facts.with_peak_flops(None).devices[1].peak_flops.bf16, Some(989.4e12));
        let none = with_gpus(cpu_cluster(16), Err(NoGpu::NotBuilt), 16);
        assert_eq!((none.devices.len(), none.no_gpu), (1, Some(NoGpu::NotBuilt)));
    }

    #[test]
    fn there_is_always_one_cpu_with_a_thread() {
        let facts = local_cluster(0);
        assert_eq!(facts.devices.iter().filter(|d| d.device == Device::Cpu).count(), 1);
        assert_eq!(facts.devices[0].threads, 1);
        assert!(!facts.devices[0].name.is_empty());
        assert_eq!(facts.with_peak_flops(Some(1e12)).devices[0].peak_flops.bf16, Some(1e12));
    }
}
