//! The validated experiment's `parallel` section: how the work is divided among ranks, and on which devices.

use serde::{Deserialize, Serialize};

use crate::program::Device;

/// The division of work among ranks. `world_size` = `replicas` · stages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parallel {
    pub mode: ParallelMode,
    /// Data-parallel replicas: of the model (dp, ddp), or of the whole pipeline. 1 under `single`.
    pub replicas: usize,
    /// Gradients are all-reduced in buckets of about this many MiB.
    pub bucket_mb: f64,
    /// The part of the training state that replicas divide (Rajbhandari et al. 2020).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardedState>,
    /// Set under mode `pipeline` only.
    pub pipeline: Option<Pipeline>,
    /// Each as in a file: `cpu` or `cuda:1`.
    #[serde(with = "device_names")]
    pub devices: AutoOr<Vec<Device>>,
    /// The most restarts of all ranks from the last checkpoint after one has died.
    pub max_restarts: u32,
}

impl Parallel {
    /// One rank.
    pub fn single() -> Self {
        Self {
            mode: ParallelMode::Single,
            replicas: 1,
            bucket_mb: 25.0,
            shard: None,
            pipeline: None,
            devices: AutoOr::Auto,
            max_restarts: 0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ParallelMode {
    Single,
    Dp,
    Ddp,
    Pipeline,
}

// The schema shows a type's documentation, which is that of the key. Each state includes those before it: `Optimizer` is the moments and the
// weights that the optimizer updates, `Gradients` are their sums over the replicas, `Parameters` the weights that the passes read.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum ShardedState {
    #[default]
    Optimizer,
    Gradients,
    Parameters,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    pub stages: usize,
    /// Layers of each chunk in the order of the model, stages · chunks of them.
    pub partition: AutoOr<Vec<usize>>,
    pub schedule: PipelineSchedule,
    /// Model chunks per rank; more than 1 under `interleaved_1f1b` only.
    pub chunks: usize,
    /// Micro-batches of one replica in one optimizer step.
    pub microbatches: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
pub enum PipelineSchedule {
    #[serde(rename = "gpipe")]
    Gpipe,
    #[default]
    #[serde(rename = "1f1b")]
    OneFOneB,
    #[serde(rename = "interleaved_1f1b")]
    Interleaved,
    #[serde(rename = "zero_bubble")]
    ZeroBubble,
}

/// The word `auto`, or a value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AutoOr<T> {
    #[default]
    Auto,
    #[serde(untagged)]
    Given(T),
}

/// Devices by their names.
mod device_names {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    use super::{AutoOr, Device};

    pub(super) fn serialize<S: Serializer>(devices: &AutoOr<Vec<Device>>, serializer: S) -> Result<S::Ok, S::Error> {
        match devices {
            AutoOr::Auto => AutoOr::<()>::Auto.serialize(serializer),
            AutoOr::Given(devices) => serializer.collect_seq(devices.iter().map(ToString::to_string)),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<AutoOr<Vec<Device>>, D::Error> {
        match AutoOr::<Vec<String>>::deserialize(deserializer)? {
            AutoOr::Auto => Ok(AutoOr::Auto),
            AutoOr::Given(names) => {
                names.iter().map(|n| n.parse().map_err(D::Error::custom)).collect::<Result<_, _>>().map(AutoOr::Given)
            }
        }
    }
}
