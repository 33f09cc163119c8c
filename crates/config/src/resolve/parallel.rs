//! The `parallel` section: a mode and the keys that belong to it, stages that fit the model.

use crate::raw::parallel::{MAX_RANKS, RawParallel, RawPipeline};
use crate::resolve::resolver::Resolver;
use runner_spec::experiment::{
    AutoOr, Batch, DeviceChoice, Parallel, ParallelMode, Pipeline, PipelineSchedule, ShardedState,
};
use runner_spec::format::{choice_name, count};

pub(crate) const REPLICAS: &str = "parallel.replicas";
pub(crate) const STAGES: &str = "parallel.pipeline.stages";
pub(crate) const MICROBATCHES: &str = "parallel.pipeline.microbatches";
const MODE: &str = "parallel.mode";
const SHARD: &str = "parallel.shard";
const PIPELINE: &str = "parallel.pipeline";
const PARTITION: &str = "parallel.pipeline.partition";
const SCHEDULE: &str = "parallel.pipeline.schedule";
const CHUNKS: &str = "parallel.pipeline.chunks";

/// A list up to this long is written out in a message.
const SHOWN: usize = 16;

/// The ranks: replicas · stages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawMesh<'r> {
    pub(crate) replicas: usize,
    pub(crate) pipeline: Option<&'r RawPipeline>,
}

impl RawPipeline {
    pub(crate) fn is_interleaved(&self) -> bool {
        self.schedule == PipelineSchedule::Interleaved
    }

    /// Pieces of the model per rank.
    fn chunks(&self) -> usize {
        self.chunks.unwrap_or(if self.is_interleaved() { 2 } else { 1 })
    }
}

impl RawMesh<'_> {
    pub(crate) fn ranks(self) -> usize {
        self.replicas * self.pipeline.map_or(1, |p| p.stages)
    }

    /// `3 stages · 2 replicas = 6 ranks`.
    pub(crate) fn arithmetic(self) -> String {
        let stages = self.pipeline.map_or(1, |pipeline| pipeline.stages);
        let (stages, replicas) = (counted(stages, "stage"), counted(self.replicas, "replica"));
        format!("{stages} · {replicas} = {}", counted(self.ranks(), "rank"))
    }
}

impl Resolver<'_> {
    /// The number of ranks; `None` after a mistake in the keys that give it.
    pub(crate) fn grid<'r>(&mut self, raw: &'r RawParallel) -> Option<RawMesh<'r>> {
        let known = [MODE, REPLICAS, STAGES, SCHEDULE, CHUNKS, MICROBATCHES];
        if known.iter().any(|key| self.mistakes.is_poisoned(key)) {
            return None;
        }
        let mode = choice_name(&raw.mode);
        let default = if self.given(MODE) { "" } else { " (the default)" };
        let mut whole = true;
        let pipeline = match (&raw.pipeline, raw.mode) {
            (Some(pipeline), ParallelMode::Pipeline) => Some(self.check_chunks(pipeline)?),
            (None, ParallelMode::Pipeline) => {
                return self.refuse(
                    &[MODE, PIPELINE],
                    "mode `pipeline` needs `parallel.pipeline`, which is missing",
                    "add `pipeline: {stages: 2}`, or more stages",
                );
            }
            (Some(_), _) => {
                self.error(
                    &[PIPELINE, MODE],
                    format!("`parallel.pipeline` needs mode `pipeline`, but the mode is `{mode}`{default}"),
                    "choose `mode: pipeline`, whose `replicas` are copies of the whole pipeline; or write `pipeline: null`",
                );
                whole = false;
                None
            }
            (None, _) => None,
        };
        let replicas = match (raw.replicas, raw.mode) {
            (Some(replicas), ParallelMode::Single) if replicas > 1 => {
                return self.refuse(
                    &[REPLICAS, MODE],
                    format!("`parallel.replicas` must be 1 in mode `single`{default}, got {replicas}"),
                    "choose `mode: ddp`, or delete `replicas`",
                );
            }
            (Some(replicas), _) => replicas,
            (None, ParallelMode::Dp | ParallelMode::Ddp) => {
                return self.refuse(
                    &[MODE, REPLICAS],
                    format!("mode `{mode}` needs `parallel.replicas`, which is missing"),
                    "add `replicas: 2` or more, the number of model copies that share the batch",
                );
            }
            (None, _) => 1,
        };
        let grid = RawMesh { replicas, pipeline };
        if grid.ranks() > MAX_RANKS {
            return self.refuse(
                &[REPLICAS, STAGES],
                format!("too many ranks: {}; at most {} are possible", grid.arithmetic(), count(MAX_RANKS as u64)),
                format!("make `replicas` at most {}", MAX_RANKS / pipeline.map_or(1, |p| p.stages)),
            );
        }
        whole.then_some(grid)
    }

    /// A mode that a higher layer chooses takes the keys of other modes in lower layers with it: `--set parallel.mode=single`
    /// over a file with a pipeline.
    pub(crate) fn overridden(&self, mut raw: RawParallel) -> RawParallel {
        let Some(mode) = self.layers.layer_of(MODE) else { return raw };
        let below = |key: &str| self.layers.layer_of(key).is_some_and(|layer| layer < mode);
        if raw.mode != ParallelMode::Pipeline && below(STAGES) {
            raw.pipeline = None;
        }
        if raw.mode == ParallelMode::Single && below(REPLICAS) {
            raw.replicas = None;
        }
        if raw.shard.is_some_and(|state| !can_shard(raw.mode, state)) && below(SHARD) {
            raw.shard = None;
        }
        raw
    }

    /// Reports a number of chunks that the schedule does not have; returns a legal pipeline.
    fn check_chunks<'r>(&mut self, pipeline: &'r RawPipeline) -> Option<&'r RawPipeline> {
        if pipeline.chunks.is_none() && pipeline.is_interleaved() {
            self.note(CHUNKS, "default of interleaved_1f1b".into());
        }
        match (pipeline.chunks(), pipeline.is_interleaved()) {
            (1, true) => self.refuse(
                &[CHUNKS, SCHEDULE],
                "`parallel.pipeline.chunks` must be at least 2 for `interleaved_1f1b`, got 1",
                "set `chunks` to 2 or more, or choose `schedule: 1f1b`, which is the same with one chunk",
            ),
            (chunks @ 2.., false) => self.refuse(
                &[CHUNKS, SCHEDULE],
                format!("`parallel.pipeline.chunks` must be 1 unless the schedule is `interleaved_1f1b`, got {chunks}"),
                "delete `chunks`, or choose `schedule: interleaved_1f1b`",
            ),
            _ => Some(pipeline),
        }
    }

    /// The section as a whole; `layers` is the model's number of them.
    pub(crate) fn parallel(
        &mut self,
        raw: &RawParallel,
        grid: Option<RawMesh<'_>>,
        batch: Option<&Batch>,
        device: DeviceChoice,
        layers: Option<usize>,
    ) -> Option<Parallel> {
        let devices = self.devices(&raw.devices, grid, device, raw.mode == ParallelMode::Dp);
        let grid = grid?;
        if let (Some(pipeline), Some(layers)) = (grid.pipeline, layers) {
            self.check_partition(pipeline, layers);
        }
        let batch = batch?;
        let pipeline = grid.pipeline.map(|pipeline| Pipeline {
            stages: pipeline.stages,
            partition: pipeline.partition.clone(),
            schedule: pipeline.schedule,
            chunks: pipeline.chunks(),
            // As given: there may be fewer micro-batches.
            microbatches: pipeline
                .microbatches
                .unwrap_or((batch.sequences / grid.replicas).div_ceil(batch.micro_batch.max(1))),
        });
        let RawParallel { mode, bucket_mb, shard, max_restarts, .. } = *raw;
        if let Some(state) = shard.filter(|state| !can_shard(mode, *state)) {
            let (state, mode) = (choice_name(&state), choice_name(&mode));
            return self.refuse(
                &[SHARD, MODE],
                format!("`parallel.shard: {state}` does not go with mode `{mode}`"),
                "choose `mode: ddp` with `replicas`, or delete `shard`; a pipeline's replicas can share the optimizer alone",
            );
        }
        Some(Parallel { mode, replicas: grid.replicas, bucket_mb, shard, pipeline, devices: devices?, max_restarts })
    }

    /// Reports a partition that does not match the model's layers.
    fn check_partition(&mut self, pipeline: &RawPipeline, layers: usize) {
        let (stages, chunks) = (pipeline.stages, pipeline.chunks());
        let parts = stages * chunks;
        let count = match chunks {
            1 => counted(stages, "stage"),
            _ => format!("{} · {chunks} chunks = {parts}", counted(stages, "stage")),
        };
        if parts > layers {
            let what = if chunks == 1 { "stages" } else { "chunks" };
            self.error(
                &[STAGES, CHUNKS, "model.layers"],
                format!("more {what} than layers: {count}, but the model has {}", counted(layers, "layer")),
                format!("make `model.layers` at least {parts}, or choose fewer {what}"),
            );
            return;
        }
        let AutoOr::Given(given) = &pipeline.partition else { return };
        if given.len() != parts {
            self.error(
                &[PARTITION, STAGES, CHUNKS],
                format!("`parallel.pipeline.partition` must have {parts} values ({count}), got {}", given.len()),
                "give the layers of each, or write `auto`, which balances them",
            );
            return;
        }
        let sum: usize = given.iter().sum();
        if sum != layers {
            self.error(
                &[PARTITION, "model.layers"],
                format!("{} sums to {sum}, but the model has {}", shown(given), counted(layers, "layer")),
                "give the layers of each, or write `auto`, which balances them",
            );
        }
    }
}

/// `1 rank`, `2 ranks`.
fn counted(n: usize, noun: &str) -> String {
    runner_spec::format::counted(n as u64, noun)
}

/// `[4, 4, 3]`, cut if it is long.
fn shown(values: &[usize]) -> String {
    let first: Vec<String> = values.iter().take(SHOWN).map(usize::to_string).collect();
    format!("[{}{}]", first.join(", "), if values.len() > SHOWN { ", …" } else { "" })
}

/// True if the replicas of `mode` can divide `state`.
fn can_shard(mode: ParallelMode, state: ShardedState) -> bool {
    match mode {
        ParallelMode::Ddp => true,
        ParallelMode::Pipeline => state == ShardedState::Optimizer,
        ParallelMode::Single | ParallelMode::Dp => false,
    }
}
