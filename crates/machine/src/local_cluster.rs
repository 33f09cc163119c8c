//! This machine as the planner sees it: its CPU and its GPUs.

use crate::doctor;
use crate::gpu_facts::GpuFacts;
use crate::host::{cpu_name, total_memory_bytes};
use crate::memory_limit::memory_limit;
use runner_spec::cluster::{ClusterFacts, Device, DeviceFacts, NoGpuReason, RankLocation};
use runner_spec::error::PlainError;

/// The value `1` makes NCCL 2.30 and newer let ranks share a GPU.
const SHARE_GPU_VARIABLE: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

/// This machine: its CPU, with `threads` threads for the rank, and the GPUs that this program can use. A CPU's peak FLOP/s is not
/// guessed: it stays unknown until someone sets it.
pub fn local_cluster(threads: usize) -> ClusterFacts {
    let mut facts = with_gpus(cpu_cluster(threads), find_gpus(), threads);
    facts.sharing = std::env::var(SHARE_GPU_VARIABLE).is_ok_and(|value| value.trim() == "1");
    // NCCL is a library of some size: it is not opened for one rank.
    let several = facts.gpu_count() > 1 || (facts.sharing && facts.gpu_count() > 0);
    facts.no_nccl = several.then(check_nccl).and_then(Result::err).map(|error| error.text);
    facts
}

/// `cluster` for ranks that a launcher started, each of which sees a machine like this one: rank r is at `locations[r]`.
pub fn with_rank_locations(mut cluster: ClusterFacts, locations: Vec<RankLocation>) -> ClusterFacts {
    let asked = cluster.gpu_count() > 1 || cluster.sharing;
    if !asked && cluster.gpu_count() > 0 && locations.len() > 1 {
        cluster.no_nccl = check_nccl().err().map(|error| error.text);
    }
    ClusterFacts { rank_locations: locations, ..cluster }
}

/// This machine's CPU alone.
pub fn cpu_cluster(threads: usize) -> ClusterFacts {
    let name = cpu_name().unwrap_or_else(|| format!("{} CPU", std::env::consts::ARCH));
    let cpu = DeviceFacts::unmeasured(Device::Cpu, name, threads);
    let mut cpu = DeviceFacts { memory_bytes: total_memory_bytes(), ..cpu };
    if let Some(limit) = memory_limit() {
        (cpu.memory_bytes, cpu.memory_limited_by) = (Some(limit.bytes), Some(limit.source));
    }
    ClusterFacts { devices: vec![cpu], ..ClusterFacts::default() }
}

/// `cluster`, one machine, with the GPUs that were `found`, which share the host's `threads`.
pub fn with_gpus(mut cluster: ClusterFacts, found: Result<Vec<GpuFacts>, NoGpuReason>, threads: usize) -> ClusterFacts {
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

/// The GPUs that the driver shows to this process. Nothing is opened on them.
fn find_gpus() -> Result<Vec<GpuFacts>, NoGpuReason> {
    if cfg!(feature = "cuda") {
        doctor::check_gpus().map_err(|error| NoGpuReason::Missing(error.text))
    } else {
        Err(NoGpuReason::NotBuilt)
    }
}

/// Checks that GPUs can communicate through NCCL.
fn check_nccl() -> Result<(), PlainError> {
    if cfg!(feature = "nccl") {
        doctor::check_nccl()
    } else {
        Err(PlainError::request("this program was built without it; build it with `--features nccl`"))
    }
}

/// `cluster` without the memory limits of this process's control groups, for processes outside them, such as the jobs of a scheduler.
pub fn without_memory_limit(mut cluster: ClusterFacts) -> ClusterFacts {
    for device in cluster.devices.iter_mut().filter(|device| device.memory_limited_by.is_some()) {
        (device.memory_bytes, device.memory_limited_by) = (total_memory_bytes(), None);
    }
    cluster
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gpu;

    #[test]
    fn gpus_that_were_found_are_devices_with_their_speeds() {
        let gpu = |index, name: &str| GpuFacts { index, ..gpu(name, (9, 0), 132, [1_980_000, 2_619_000], 5120) };
        let found = vec![gpu(0, "NVIDIA H100 80GB HBM3"), gpu(1, "NVIDIA H100 80GB HBM3")];
        let facts = with_gpus(cpu_cluster(16), Ok(found), 16);
        let devices: Vec<(Device, usize)> = facts.devices.iter().map(|d| (d.device, d.threads)).collect();
        assert_eq!(devices, [(Device::Cpu, 16), (Device::Cuda(0), 8), (Device::Cuda(1), 8)]);
        assert!(facts.rates.devices.contains_key("NVIDIA H100 80GB HBM3") && facts.rates.gpu_links.is_some());
        assert_eq!(facts.with_peak_flops(None).devices[1].peak_flops.bf16, Some(989.4e12));
        let none = with_gpus(cpu_cluster(16), Err(NoGpuReason::NotBuilt), 16);
        assert_eq!((none.devices.len(), none.no_gpu), (1, Some(NoGpuReason::NotBuilt)));
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
