//! Facts about this machine: the one place of the planner's room that looks outside. `compile` never calls it.

use std::fs;

use crate::plan::facts::{ClusterFacts, Device, DeviceFacts, PeakFlops};
use crate::plan::rates::Rates;

impl ClusterFacts {
    /// This machine's CPU, with `threads` threads for the rank. The peak FLOP/s is not guessed: it stays unknown until
    /// someone says it.
    #[must_use]
    pub fn local(threads: usize) -> Self {
        let cpu = DeviceFacts {
            device: Device::Cpu,
            node: 0,
            name: cpu_name(),
            threads: threads.max(1),
            memory_bytes: memory_bytes(),
            peak_flops: PeakFlops::default(),
            compute_capability: None,
        };
        Self { devices: vec![cpu], rates: Rates::default() }
    }

    /// The same machine with `peak` FLOP/s for every device and precision.
    #[must_use]
    pub fn with_peak_flops(mut self, peak: Option<f64>) -> Self {
        for device in &mut self.devices {
            device.peak_flops = PeakFlops::all(peak);
        }
        self
    }
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

    #[test]
    fn reads_the_kernel_table() {
        assert_eq!(parse_meminfo("MemTotal:       24000 kB\nMemFree: 1 kB\n"), Some(24_000 * 1024));
        assert_eq!(parse_meminfo("MemTotal: lots\n"), None);
        assert_eq!(parse_meminfo(""), None);
    }

    #[test]
    fn there_is_always_one_cpu_with_a_thread() {
        let facts = ClusterFacts::local(0);
        assert_eq!(facts.devices.len(), 1);
        assert_eq!(facts.devices[0].threads, 1);
        assert!(!facts.devices[0].name.is_empty());
        assert_eq!(facts.with_peak_flops(Some(1e12)).devices[0].peak_flops.bf16, Some(1e12));
    }
}
