//! What the planner knows of machines: plain facts, handed in, so that planning needs no device.

use serde::{Deserialize, Serialize};

pub use crate::program::Device;
use crate::rates::Rates;
use crate::serde_defaults::is_default;

/// The devices a run may use, in the order in which ranks take them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterFacts {
    pub devices: Vec<DeviceFacts>,
    /// How fast they are, as far as it is known.
    #[serde(default)]
    pub rates: Rates,
    /// Why no GPU is among them, where one was looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_gpu: Option<NoGpu>,
    /// Why GPUs cannot talk to each other, where that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_nccl: Option<String>,
    /// Whether several ranks may be on one GPU.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sharing: bool,
    /// Where a launcher put each rank; `devices` are then those that one of them sees, of one machine. Empty where the ranks
    /// are started on this machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seats: Vec<RankSeat>,
}

impl ClusterFacts {
    /// How many of the devices are GPUs.
    #[must_use]
    pub fn gpus(&self) -> usize {
        self.devices.iter().filter(|device| matches!(device.device, Device::Cuda(_))).count()
    }

    /// The same devices with `peak` FLOP/s each in every precision, if it is given.
    #[must_use]
    pub fn with_peak_flops(mut self, peak: Option<f64>) -> Self {
        if let Some(peak) = peak {
            for device in &mut self.devices {
                device.peak_flops = PeakFlops::all(Some(peak));
                device.estimated = false;
            }
        }
        self
    }
}

/// Where a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankSeat {
    /// The machine, from 0.
    pub node: usize,
    /// Among the ranks of that machine.
    pub local_rank: usize,
}

/// Why a machine has no GPU that this program could use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoGpu {
    /// The program was built without CUDA.
    NotBuilt,
    /// What of driver and libraries is missing.
    Missing(String),
}

/// One device. What is not known is `None`, never a guess.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceFacts {
    pub device: Device,
    /// The machine that it is in, from 0.
    #[serde(default)]
    pub node: usize,
    /// As the vendor calls it.
    pub name: String,
    /// Host threads that a rank on this device computes with.
    pub threads: usize,
    pub memory_bytes: Option<u64>,
    /// Peak FLOP/s of matrix products by precision; MFU is reported against it.
    pub peak_flops: PeakFlops,
    /// Of a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_capability: Option<ComputeCapability>,
    /// Whether its speed is not from a data sheet, but made of its clocks and multiprocessors.
    #[serde(default, skip_serializing_if = "is_default")]
    pub estimated: bool,
}

/// What a GPU's multiprocessors can do, as the vendor counts it: 9.0 is Hopper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ComputeCapability {
    pub major: u32,
    pub minor: u32,
}

impl ComputeCapability {
    /// The first that the kernels are compiled for: Ampere.
    pub const LEAST: Self = Self { major: 8, minor: 0 };
}

impl std::fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Peak FLOP/s of matrix products, where known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PeakFlops {
    pub fp32: Option<f64>,
    pub tf32: Option<f64>,
    pub bf16: Option<f64>,
}

impl PeakFlops {
    /// The same peak whatever the precision.
    #[must_use]
    pub fn all(peak: Option<f64>) -> Self {
        Self { fp32: peak, tf32: peak, bf16: peak }
    }
}
