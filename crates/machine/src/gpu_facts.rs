//! Facts that a driver reports about a GPU, and what a plan takes from them: data-sheet numbers for known devices, else estimates
//! from multiprocessors, clocks and architecture. This module is pure: `local_cluster` asks the driver.

use crate::cluster_description::{DataSheet, KNOWN_DEVICES, assumed_rates};
use runner_spec::cluster::{ComputeCapability, Device, DeviceFacts, PeakFlops};
use runner_spec::rates::{DeviceRates, Links};
use serde::Serialize;

/// One GPU, as its driver describes it. A number that the driver does not report is 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GpuFacts {
    /// The driver's ordinal on this machine.
    pub index: usize,
    pub name: String,
    pub memory_bytes: u64,
    pub compute_capability: ComputeCapability,
    /// Multiprocessors.
    pub sms: u32,
    /// Their highest clock.
    pub clock_khz: u32,
    pub memory_clock_khz: u32,
    /// Bits of the memory's bus.
    pub bus_width: u32,
}

/// The names that drivers give to the devices of `KNOWN_DEVICES`. Only the boards of the data sheets are listed, and V100 with 16 GB, which
/// differs in its memory alone. Other boards with the same chip have other clocks, memory or power.
const NAMES: [(&str, &str); 10] = [
    ("Tesla V100-SXM2-32GB", "V100"),
    ("Tesla V100-SXM2-16GB", "V100"),
    ("A100-SXM4-40GB", "A100-40GB"),
    ("A100-SXM4-80GB", "A100"),
    ("H100 80GB HBM3", "H100"),
    ("H200", "H200"),
    ("B200", "B200"),
    ("L40S", "L40S"),
    ("GeForce RTX 4090", "RTX4090"),
    ("RTX 4090", "RTX4090"),
];

/// The device of `KNOWN_DEVICES` that the driver calls `name`.
pub fn data_sheet_of_gpu(name: &str) -> Option<&'static DataSheet> {
    let plain = name.trim().strip_prefix("NVIDIA ").unwrap_or(name.trim()).trim();
    let (_, known) = NAMES.iter().find(|(driver, _)| driver.eq_ignore_ascii_case(plain))?;
    KNOWN_DEVICES.iter().find(|device| device.name == *known)
}

impl GpuFacts {
    /// This GPU as a device for ranks, with `threads` threads of the host.
    pub fn device(&self, threads: usize) -> DeviceFacts {
        DeviceFacts {
            memory_bytes: (self.memory_bytes > 0).then_some(self.memory_bytes),
            peak_flops: data_sheet_of_gpu(&self.name).map_or_else(|| self.estimated_peaks(), |known| known.peak_flops),
            compute_capability: Some(self.compute_capability),
            estimated: data_sheet_of_gpu(&self.name).is_none(),
            ..DeviceFacts::unmeasured(Device::Cuda(self.index), self.name.clone(), threads)
        }
    }

    /// The rates of this GPU; `None` if not even its clocks are known.
    pub fn rates(&self) -> Option<DeviceRates> {
        let rates = match data_sheet_of_gpu(&self.name) {
            Some(known) => known.rates(),
            None => assumed_rates(self.estimated_bandwidth()?),
        };
        Some(DeviceRates::Accelerator(rates))
    }

    /// The links between several of these GPUs: by the data sheet, or else PCIe 4.0, as between L40S.
    pub fn links(&self) -> Option<Links> {
        data_sheet_of_gpu(&self.name).or_else(|| KNOWN_DEVICES.iter().find(|d| d.name == "L40S"))?.links
    }

    /// Dense FLOP/s: multiprocessors · clock · what one of them does in a cycle.
    fn estimated_peaks(&self) -> PeakFlops {
        let cycles = f64::from(self.sms) * f64::from(self.clock_khz) * 1e3;
        let [fp32, tf32, bf16] = self.per_cycle().map(|flops| (flops > 0.0 && cycles > 0.0).then_some(flops * cycles));
        PeakFlops { fp32, tf32, bf16 }
    }

    /// FLOPs of one multiprocessor in one cycle, dense: fp32, TF32, bf16 with f32 sums. Consumer boards of Ampere and later sum
    /// in f32 at half the rate.
    fn per_cycle(&self) -> [f64; 3] {
        let consumer = self.name.contains("GeForce");
        let halved = |bf16: f64| if consumer { bf16 / 2.0 } else { bf16 };
        let (fp32, bf16) = match (self.compute_capability.major, self.compute_capability.minor) {
            (..=7, _) => (128.0, 0.0),
            (8, 0) => (128.0, 2048.0),
            (9, _) => (256.0, 4096.0),
            (10 | 11, _) => (256.0, 8192.0),
            _ => (256.0, halved(1024.0)),
        };
        [fp32, bf16 / 2.0, bf16]
    }

    /// Bytes/s: two transfers a clock.
    fn estimated_bandwidth(&self) -> Option<f64> {
        let bandwidth = 2.0 * f64::from(self.memory_clock_khz) * 1e3 * f64::from(self.bus_width) / 8.0;
        (bandwidth > 0.0).then_some(bandwidth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gpu;
    use runner_spec::experiment::Precision;
    use runner_spec::precision;

    #[test]
    fn names_of_drivers_are_those_of_data_sheets() {
        let known = |name| data_sheet_of_gpu(name).map(|d| d.name.as_ref());
        for (name, device) in [
            ("NVIDIA H100 80GB HBM3", "H100"),
            ("NVIDIA H200", "H200"),
            ("NVIDIA A100-SXM4-80GB", "A100"),
            ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
            ("NVIDIA L40S", "L40S"),
            ("NVIDIA GeForce RTX 4090", "RTX4090"),
            ("NVIDIA B200", "B200"),
            ("Tesla V100-SXM2-32GB", "V100"),
        ] {
            assert_eq!(known(name), Some(device));
        }
        // Other boards of the same chips, and parts of one.
        for other in ["NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 4090 Laptop GPU", ""]
        {
            assert_eq!(known(other), None, "{other}");
        }
        assert!(NAMES.iter().all(|(_, device)| KNOWN_DEVICES.iter().any(|d| d.name == *device)));
    }

    /// Estimates of known boards, under an unknown name, beside their data sheets: within 10%, because drivers report the highest clock and
    /// data sheets the sustained one.
    #[test]
    fn estimates_come_near_data_sheets() {
        for (name, sheet, facts) in [
            ("board", "A100", gpu("", (8, 0), 108, [1_410_000, 1_593_000], 5120)),
            ("board", "H100", gpu("", (9, 0), 132, [1_980_000, 2_619_000], 5120)),
            ("GeForce", "RTX4090", gpu("", (8, 9), 128, [2_520_000, 10_501_000], 384)),
            ("board", "L40S", gpu("", (8, 9), 142, [2_520_000, 9_001_000], 384)),
        ] {
            let facts = GpuFacts { name: format!("NVIDIA {name} of another name"), ..facts };
            let (device, known) = (facts.device(1), KNOWN_DEVICES.iter().find(|d| d.name == sheet).unwrap());
            assert!(device.estimated);
            for precision in [Precision::Fp32, Precision::Tf32, Precision::Bf16] {
                let [got, want] = [device.peak_flops, known.peak_flops]
                    .map(|p| precision::peak(precision, device.device, &p).unwrap());
                assert!((got / want - 1.0).abs() < 0.1, "{sheet}, {precision:?}: {got:e} for {want:e}");
            }
            let Some(DeviceRates::Accelerator(rates)) = facts.rates() else { panic!("rates") };
            assert!((rates.memory_bandwidth / known.rates().memory_bandwidth - 1.0).abs() < 0.1, "{sheet}");
        }
    }

    #[test]
    fn a_known_board_has_its_data_sheet_and_its_own_memory() {
        let facts = GpuFacts { index: 3, ..gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, [1_980_000, 2_619_000], 5120) };
        let device = facts.device(4);
        assert_eq!((device.device, device.memory_bytes, device.threads), (Device::Cuda(3), Some(80 << 30), 4));
        assert_eq!(device.peak_flops.bf16, Some(989.4e12));
        assert!(!device.estimated && facts.links().is_some());
    }

    #[test]
    fn facts_that_a_driver_does_not_report_are_absent() {
        let facts = GpuFacts { memory_bytes: 0, ..gpu("NVIDIA Unknown", (7, 5), 0, [0, 0], 0) };
        let device = facts.device(1);
        assert_eq!((device.memory_bytes, device.peak_flops), (None, PeakFlops::default()));
        assert_eq!(facts.rates(), None);
        // Turing has no bf16.
        assert_eq!(gpu("NVIDIA T4", (7, 5), 40, [1_590_000, 5_001_000], 256).device(1).peak_flops.bf16, None);
    }
}
