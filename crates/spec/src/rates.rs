//! Speeds of devices and links, from which a plan's time is predicted. Unknown speeds are absent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::experiment::{Family, Precision};

/// Speeds of the devices of a cluster, by their names, and of the links between them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    #[serde(default)]
    pub devices: BTreeMap<String, DeviceRates>,
    #[serde(default)]
    pub links: Option<Links>,
    /// The links between GPUs, if `links` are those between processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_links: Option<Links>,
}

/// The way in which the time of a block is predicted on a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceRates {
    /// From data sheets: an assumption.
    Accelerator(AcceleratorRates),
    /// From measurements.
    Measured(MeasuredRates),
}

/// Time of a block = FLOPs / (peak · `product_efficiency`) + bytes / (bandwidth · `memory_efficiency`), and at least what
/// starting its kernels takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AcceleratorRates {
    /// Bytes/s of device memory.
    pub memory_bandwidth: f64,
    /// Share of the peak FLOP/s that matrix products reach.
    pub product_efficiency: PerPrecision<f64>,
    /// Share of the memory bandwidth that everything else reaches.
    pub memory_efficiency: f64,
}

/// A number for each precision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PerPrecision<T> {
    pub fp32: T,
    pub tf32: T,
    pub bf16: T,
}

impl<T: Copy> PerPrecision<T> {
    /// The same number in every precision.
    pub const fn all(number: T) -> Self {
        Self { fp32: number, tf32: number, bf16: number }
    }

    pub fn of(&self, precision: Precision) -> T {
        match precision {
            Precision::Fp32 => self.fp32,
            Precision::Tf32 => self.tf32,
            Precision::Bf16 => self.bf16,
        }
    }
}

/// Bytes/s in one direction, and seconds until the first byte arrives.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Link {
    pub bytes_per_second: f64,
    pub latency: f64,
    /// True if sender and receiver copy the bytes themselves and cannot compute meanwhile (shared memory).
    #[serde(default)]
    pub copied_by_ranks: bool,
    /// Bytes/s of a sum over n ranks, counted as a ring would send them: 2(n − 1)/n of the buffer. `None`: those of messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum_bytes_per_second: Option<f64>,
}

impl Link {
    /// Bytes/s of a sum over ranks.
    #[must_use]
    pub fn sum_rate(&self) -> f64 {
        self.sum_bytes_per_second.unwrap_or(self.bytes_per_second)
    }
}

/// Between devices of one node (per device), and between nodes (per node: all its adapters together).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Links {
    pub within: Link,
    pub between: Link,
}

/// Measurements of a CPU with the program's own kernels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredRates {
    pub cores: usize,
    pub layers: Vec<LayerPoint>,
    pub heads: Vec<HeadPoint>,
    pub embeddings: Vec<EmbeddingPoint>,
    pub updates: Vec<UpdatePoint>,
    /// Time of a layer under bf16 over its time under fp32.
    pub bf16_factor: f64,
    /// Says how other programs computed meanwhile, if they did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disturbance: Option<String>,
}

/// The load during a measurement: `ranks` ranks compute at once, with `threads` threads each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConcurrentLoad {
    pub ranks: usize,
    pub threads: usize,
}

/// Seconds of one transformer layer on one rank: `positions` tokens in rows of `length`. GPT-2 layers have d_ff 4·d_model,
/// Llama layers 3·d_model and as many key-value heads as heads.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LayerPoint {
    pub family: Family,
    pub busy: ConcurrentLoad,
    pub d_model: usize,
    pub positions: usize,
    pub length: usize,
    pub forward: f64,
    pub backward: f64,
}

/// Seconds of the final norm, the projection to `vocab` ids and the loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HeadPoint {
    pub busy: ConcurrentLoad,
    pub d_model: usize,
    pub vocab: usize,
    pub positions: usize,
    pub forward: f64,
    pub backward: f64,
}

/// Seconds of looking up `positions` rows, and of adding their gradients.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EmbeddingPoint {
    pub busy: ConcurrentLoad,
    pub d_model: usize,
    pub positions: usize,
    pub forward: f64,
    pub backward: f64,
}

/// Seconds of the end of a step for `parameters` parameters: norm, update by the default optimizer, clearing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct UpdatePoint {
    pub busy: ConcurrentLoad,
    pub parameters: usize,
    pub seconds: f64,
}

/// Seconds of one block for one micro-batch. The backward is `input` + `weight`: the gradient of its input, and those of
/// its weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockSeconds {
    pub forward: f64,
    pub input: f64,
    pub weight: f64,
}

impl BlockSeconds {
    pub fn backward(self) -> f64 {
        self.input + self.weight
    }

    /// Forward and backward.
    pub fn total(self) -> f64 {
        self.forward + self.backward()
    }

    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self { forward: self.forward * factor, input: self.input * factor, weight: self.weight * factor }
    }
}
