//! The `parallel` section as written.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use runner_spec::experiment::{AutoOr, ParallelMode, PipelineSchedule, ShardedState};

/// More ranks than this are a slip.
pub(crate) const MAX_RANKS: usize = 1_000_000;
/// Most micro-batches of a replica in one step.
pub(crate) const MAX_MICROBATCHES: usize = 65_536;

/// The division of the work among replicas · stages ranks, each with a device.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Parallel")]
pub(crate) struct RawParallel {
    /// `single`: one device. `dp`: replicas that reduce their gradients to one root. `ddp`: replicas that all-reduce
    /// gradients in buckets while the backward runs. `pipeline`: the layers divided into stages.
    pub(crate) mode: ParallelMode,
    /// Copies of the model that share the batch (dp, ddp: required), or of the whole pipeline (pipeline: default 1).
    #[schemars(range(min = 1, max = 100_000))]
    pub(crate) replicas: Option<usize>,
    /// MiB of gradients that are all-reduced at once.
    #[schemars(range(max = 1_000_000), extend("exclusiveMinimum" = 0))]
    pub(crate) bucket_mb: f64,
    /// The state that replicas divide. `optimizer`: the moments, and the weights that the optimizer updates (ZeRO-1; ddp and pipelines).
    /// `gradients`: also the summed gradients (ZeRO-2; ddp). `parameters`: also the weights that the passes read (ZeRO-3; ddp).
    pub(crate) shard: Option<ShardedState>,
    /// The stages and their schedule; required in mode `pipeline`, and not allowed in other modes.
    pub(crate) pipeline: Option<RawPipeline>,
    /// The device of each rank, as in `[cpu, cpu]` or `[cuda:0, cuda:1]`; `auto` follows `device`.
    #[schemars(schema_with = "devices")]
    pub(crate) devices: AutoOr<Vec<String>>,
    /// How often all ranks restart from the last checkpoint after a rank has died.
    #[schemars(range(min = 0, max = 1_000))]
    pub(crate) max_restarts: u32,
}

impl Default for RawParallel {
    fn default() -> Self {
        Self {
            mode: ParallelMode::Single,
            replicas: None,
            bucket_mb: 25.0,
            shard: None,
            pipeline: None,
            devices: AutoOr::Auto,
            max_restarts: 0,
        }
    }
}

/// Stages, each a run of layers on a separate rank.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Pipeline")]
pub(crate) struct RawPipeline {
    /// The number of ranks that share a replica's layers.
    #[schemars(range(min = 1, max = 100_000))]
    pub(crate) stages: usize,
    /// Layers of each stage, as in `[4, 4, 4]` (with chunks: of each chunk, in the order of the model); `auto` balances
    /// them. The first stage also has the embedding, the last the final norm and the head.
    #[serde(default)]
    #[schemars(schema_with = "partition")]
    pub(crate) partition: AutoOr<Vec<usize>>,
    /// The order of a rank's forwards and backwards.
    #[serde(default)]
    pub(crate) schedule: PipelineSchedule,
    /// Chunks of the model per rank. Default: 1; with `interleaved_1f1b` 2, which is also the least.
    #[schemars(range(min = 1, max = 100_000))]
    pub(crate) chunks: Option<usize>,
    /// The most micro-batches of a replica per optimizer step. Each has its sequences / microbatches, rounded up, and the last one has
    /// the rest, as `torch.chunk` divides. Default: its sequences / micro_batch; without either, the smallest divisor of its sequences
    /// that is at least 2·stages.
    #[schemars(range(min = 1, max = 65_536))]
    pub(crate) microbatches: Option<usize>,
}

fn partition(_: &mut SchemaGenerator) -> Schema {
    auto_or_list(&json_schema!({
        "type": "integer", "minimum": 1, "maximum": 10_000, "description": "the layers of one stage, a whole number"
    }))
}

fn devices(_: &mut SchemaGenerator) -> Schema {
    auto_or_list(&json_schema!({
        "type": "string", "pattern": "^(cpu|cuda:[0-9]+)$", "description": "`cpu`, or `cuda:` and a number"
    }))
}

fn auto_or_list(item: &Schema) -> Schema {
    json_schema!({"anyOf": [{"type": "string", "enum": ["auto"]}, {"type": "array", "items": item}]})
}
