//! Facts about machines. The planner gets them as arguments, so planning needs no device.

use serde::{Deserialize, Serialize};

pub use crate::program::Device;
use crate::rates::{PerPrecision, Rates};
use crate::serde_defaults::is_default;

/// The devices a run may use, in the order in which ranks take them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterFacts {
    pub devices: Vec<DeviceFacts>,
    /// Their speeds, as far as they are known.
    #[serde(default)]
    pub rates: Rates,
    /// The reason why none of them is a GPU, if one was looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_gpu: Option<NoGpuReason>,
    /// The reason why GPUs cannot communicate, if that was checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_nccl: Option<String>,
    /// True if several ranks may be on one GPU.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sharing: bool,
    /// The machine of each rank under a launcher. `devices` are then those that one of the ranks sees on its machine. Empty if
    /// the ranks are started on this machine.
    #[serde(default, rename = "seats", skip_serializing_if = "Vec::is_empty")]
    pub rank_locations: Vec<RankLocation>,
    /// The same on all devices: a fact about this program. Records do not have it.
    #[serde(skip)]
    pub kernels: KernelWorkspace,
}

/// The memory that kernels use while they work, as `compute` reports it. The default is 0 everywhere, for plans whose memory is not read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelWorkspace {
    /// The queries of a tile of attention's probabilities on a CPU: a thread holds `attention_tiles` of them, each by all keys, in f32.
    pub attention_queries: u64,
    pub attention_tiles: u64,
    /// Buffers of one attention head, by all keys, that a thread holds besides, in f32.
    pub attention_head_buffers: u64,
    /// The most rows and columns of the left matrix of an f32 product that a CPU's thread holds in the order in which it reads them.
    pub packed_rows: u64,
    pub packed_depth: u64,
    /// The most bytes that a CPU's product of bf16 matrices holds of each matrix, in the order in which it reads them, and of f32 sums.
    pub product_operand_bytes: u64,
    pub product_sum_bytes: u64,
    /// Bytes of scratch for matrix products on a GPU older than Hopper, and on Hopper and newer GPUs.
    pub gpu_scratch_bytes: [u64; 2],
    /// Rows of logits that a CPU and a GPU hold at a time where no gradient is needed.
    pub logit_rows: [u64; 2],
}

impl ClusterFacts {
    /// True if a launcher starts a process for each rank, as it must on several machines.
    #[must_use]
    pub fn has_launcher(&self) -> bool {
        !self.rank_locations.is_empty() || self.devices.windows(2).any(|pair| pair[0].node != pair[1].node)
    }

    /// The number of devices that are GPUs.
    pub fn gpu_count(&self) -> usize {
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

/// The machine of a rank, and its place on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankLocation {
    /// The machine, from 0.
    pub node: usize,
    /// Its number among the ranks of that machine, from 0.
    pub local_rank: usize,
}

/// The reason why a machine has no GPU that this program can use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoGpuReason {
    /// The program was built without CUDA.
    NotBuilt,
    /// A driver or a library is missing.
    Missing(String),
}

/// One device. An unknown fact is `None`, never a guess.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceFacts {
    pub device: Device,
    /// The machine that it is in, from 0.
    #[serde(default)]
    pub node: usize,
    /// The vendor's name for it.
    pub name: String,
    /// Host threads that a rank on this device computes with.
    pub threads: usize,
    /// Memory that a process may use.
    pub memory_bytes: Option<u64>,
    /// What limits this memory to less than the machine has, such as `the control group /a (memory.max)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limited_by: Option<String>,
    /// Peak FLOP/s of matrix products by precision; MFU is reported against it.
    pub peak_flops: PeakFlops,
    /// `None` for a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_capability: Option<ComputeCapability>,
    /// True if its speed is not from a data sheet, but computed from its clocks and multiprocessors.
    #[serde(default, skip_serializing_if = "is_default")]
    pub estimated: bool,
}

impl DeviceFacts {
    /// A device of the first machine, about which nothing else is known.
    pub fn unmeasured(device: Device, name: String, threads: usize) -> Self {
        Self {
            device,
            node: 0,
            name,
            threads: threads.max(1),
            memory_bytes: None,
            memory_limited_by: None,
            peak_flops: PeakFlops::default(),
            compute_capability: None,
            estimated: false,
        }
    }

    /// `, limited by the control group /a (memory.max)`, to follow the amount of memory; empty if nothing limits it.
    pub fn memory_limit_note(&self) -> String {
        self.memory_limited_by.as_ref().map_or_else(String::new, |source| format!(", limited by {source}"))
    }
}

/// The generation of a GPU's multiprocessors in the vendor's count: 9.0 is Hopper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ComputeCapability {
    pub major: u32,
    pub minor: u32,
}

impl ComputeCapability {
    /// The oldest generation that the kernels are compiled for: Ampere.
    pub const MINIMUM: Self = Self { major: 8, minor: 0 };
}

impl std::fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Peak FLOP/s of matrix products, where known.
pub type PeakFlops = PerPrecision<Option<f64>>;
