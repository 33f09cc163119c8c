//! What the planner knows of machines: plain facts, handed in, so that planning needs no device.

use serde::{Deserialize, Serialize};

pub use crate::plan::program::Device;
use crate::plan::rates::Rates;

/// The devices a run may use, in the order in which ranks take them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterFacts {
    pub devices: Vec<DeviceFacts>,
    /// How fast they are, as far as it is known.
    #[serde(default)]
    pub rates: Rates,
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
