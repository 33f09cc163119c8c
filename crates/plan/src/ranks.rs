//! The ranks of a run: the blocks that each rank holds, the rows that it takes, and its program.

pub(crate) mod devices;
mod partition;
pub(crate) mod shard;
pub(crate) mod shard_note;
pub mod topology;

use std::ops::Range;

use crate::check::ExecutionSummary;
use crate::error::{Result, refuse};
use crate::forecast::block_time::BlockTimer;
use crate::forecast::cost::{self, count_chunks};
use crate::memory::{MemoryBasis, estimate};
use crate::ranks::shard::divide_parameters;
use crate::schedule::{ScheduledPass, schedule};
use crate::step_program::{gradient_buckets, step_instructions};
use partition::BlockCosts;
use runner_spec::cluster::{ClusterFacts, DeviceFacts};
use runner_spec::experiment::ParallelMode;
use runner_spec::experiment::{Parallel, PipelineSchedule, Recompute};
use runner_spec::format::division;
use runner_spec::mesh::Mesh;
use runner_spec::model::ModelSpec;
use runner_spec::plan::{Flops, RankPlan};
use runner_spec::precision;
use runner_spec::program::{BlockRange, CostClass, Device, Instruction, Periodic, Program};
use runner_spec::rates::{BlockSeconds, DeviceRates};

/// The most ranks that are planned; a file that asks for more is a mistake.
const MAX_RANKS: usize = 1 << 20;

/// The most ranks times micro-batches times chunks: each takes a handful of instructions in some list.
const MAX_PASSES: usize = 1 << 21;

/// Stages and replicas of `parallel`.
///
/// # Errors
/// If they do not divide the batch, or are none or too many.
pub fn mesh(parallel: &Parallel, sequences: usize) -> Result<Mesh> {
    let stages = match (parallel.mode, &parallel.pipeline) {
        (ParallelMode::Pipeline, Some(pipeline)) => pipeline.stages,
        (ParallelMode::Pipeline, None) => refuse!("parallel.pipeline", "mode pipeline needs it"),
        _ => 1,
    };
    let replicas = if parallel.mode == ParallelMode::Single { 1 } else { parallel.replicas };
    if stages == 0 || replicas == 0 || stages.checked_mul(replicas).is_none_or(|world| world > MAX_RANKS) {
        refuse!("parallel", "{stages} stages · {replicas} replicas: 1 to {MAX_RANKS} ranks can be planned");
    }
    if !sequences.is_multiple_of(replicas) {
        let division = division(sequences, replicas);
        refuse!("parallel.replicas", "batch.sequences {division} does not divide among {replicas} replicas");
    }
    Ok(Mesh { mode: parallel.mode, stages, replicas })
}

/// The division of the model among the ranks.
#[derive(Debug, Clone)]
pub(crate) struct RankLayout {
    pub mesh: Mesh,
    /// Layers of each part of the model.
    pub counts: Vec<usize>,
    pub chunks: usize,
    pub schedule: PipelineSchedule,
}

impl RankLayout {
    /// Settles the partition. `notes` receive the choice and its reason.
    pub(crate) fn new(
        parallel: &Parallel,
        common: &Program,
        times: &BlockTimes,
        notes: &mut Vec<String>,
    ) -> Result<Self> {
        let mesh = common.mesh;
        let layers = common.model.layers;
        let slice = common.batch.sequences / mesh.replicas;
        let micro_batches = slice.div_ceil(common.batch.micro_batch);
        let pipeline = parallel.pipeline.as_ref().filter(|_| mesh.mode == ParallelMode::Pipeline);
        let chunks = pipeline.map_or(1, |p| p.chunks);
        let passes = mesh.world_size().saturating_mul(micro_batches).saturating_mul(chunks);
        if passes > MAX_PASSES {
            refuse!(
                "parallel",
                "{} ranks · {micro_batches} micro-batches{} = {passes} passes in a step; at most {MAX_PASSES} can be planned, so use larger \
                 micro-batches",
                mesh.world_size(),
                if chunks > 1 { format!(" · {chunks} chunks") } else { String::new() }
            );
        }
        let Some(pipeline) = pipeline else {
            return Ok(Self { mesh, counts: vec![layers], chunks, schedule: PipelineSchedule::OneFOneB });
        };
        let stages = mesh.stages;
        let parts = stages.saturating_mul(chunks);
        if chunks == 0 || parts > layers {
            refuse!(
                "parallel.pipeline.stages",
                "{stages} stages · {chunks} chunks = {parts} parts, but the model has {layers} layers, and each part needs one"
            );
        }
        if pipeline.microbatches > micro_batches {
            notes.push(format!(
                "parallel.pipeline.microbatches: {slice} sequences in micro-batches of {} are {micro_batches}, not {}",
                common.batch.micro_batch, pipeline.microbatches
            ));
        }
        let interleaved = pipeline.schedule == PipelineSchedule::Interleaved;
        if interleaved && stages < 2 {
            refuse!("parallel.pipeline.stages", "interleaved_1f1b needs at least 2 stages");
        }
        if interleaved && !micro_batches.is_multiple_of(stages) {
            let (times, rest) = (micro_batches / stages, micro_batches % stages);
            refuse!(
                "parallel.pipeline.microbatches",
                "interleaved_1f1b needs a multiple of the stages: {micro_batches} micro-batches = {times}·{stages} + {rest}"
            );
        }
        if chunks > 1 && !interleaved {
            refuse!("parallel.pipeline.chunks", "{chunks} chunks need the schedule interleaved_1f1b");
        }
        let (counts, why) = partition::partition(&pipeline.partition, layers, parts, &times.costs);
        let (listed, sum) = (counts.len(), counts.iter().sum::<usize>());
        if listed != parts || sum != layers || counts.contains(&0) {
            refuse!(
                "parallel.pipeline.partition",
                "it lists {listed} parts with {sum} layers in total, but there are {parts} with {layers}"
            );
        }
        if let Some(why) = why {
            notes.push(format!("{why} ({})", times.source));
        }
        Ok(Self { mesh, counts, chunks, schedule: pipeline.schedule })
    }

    /// The blocks of `stage`.
    pub(crate) fn stage_chunks(&self, stage: usize) -> Vec<BlockRange> {
        let parts = partition::parts(&self.counts);
        parts.into_iter().skip(stage).step_by(self.mesh.stages).collect()
    }

    /// The program of every rank under `parallel`; `common` is what all programs have in common.
    ///
    /// # Errors
    /// If the state cannot be sharded.
    pub(crate) fn programs(
        &self,
        parallel: &Parallel,
        clip_norm: Option<f64>,
        common: &Program,
        hardware: &[DeviceFacts],
    ) -> Result<Vec<Program>> {
        let mesh = self.mesh;
        let mut out = Vec::with_capacity(mesh.world_size());
        let passes = self.passes(common);
        for (stage, passes) in passes.iter().enumerate() {
            let divide = |program: &Program| divide_parameters(program, mesh.replicas, hardware);
            let of_stage = self.stage_program(parallel, common, stage, divide)?;
            for replica in 0..mesh.replicas {
                let mut program = replica_program(&of_stage, stage, replica, hardware);
                program.step = step_instructions(&program, passes, clip_norm);
                exchange_weights_for_evaluations(&mut program);
                out.push(program);
            }
        }
        Ok(out)
    }

    /// The passes of each stage.
    pub(crate) fn passes(&self, common: &Program) -> Vec<Vec<ScheduledPass>> {
        let micro_batches = (common.batch.sequences / self.mesh.replicas).div_ceil(common.batch.micro_batch);
        schedule(self.schedule, self.mesh.stages, self.chunks, micro_batches)
    }

    /// `common` with the blocks, buckets and shards of `stage`. `divide` divides the parameters of a program among its replicas.
    ///
    /// # Errors
    /// If the state cannot be sharded.
    pub(crate) fn stage_program(
        &self,
        parallel: &Parallel,
        common: &Program,
        stage: usize,
        divide: impl FnOnce(&Program) -> Result<Vec<Range<usize>>>,
    ) -> Result<Program> {
        let replicas = self.mesh.replicas;
        let mut program = Program { chunks: self.stage_chunks(stage), ..common.clone() };
        if replicas > 1 {
            let bucket_bytes = parallel.bucket_mb * f64::from(1 << 20);
            program.buckets = gradient_buckets(&program.model, &program.chunks, bucket_bytes);
        }
        if let Some(state) = parallel.shard.filter(|_| replicas > 1) {
            (program.shards, program.sharded) = (divide(&program)?, state);
        }
        Ok(program)
    }
}

/// The program of a replica of `stage`, whose replicas have `of_stage` in common, without the instructions of its step.
pub(crate) fn replica_program(of_stage: &Program, stage: usize, replica: usize, hardware: &[DeviceFacts]) -> Program {
    let mut program = of_stage.clone();
    let mesh = program.mesh;
    program.rank = mesh.rank(stage, replica);
    program.device = hardware[program.rank].device;
    // Batches are divided as in PyTorch: DistributedSampler deals rows out in turn, DataParallel cuts.
    let (dealt, slice) = (mesh.mode != ParallelMode::Dp, program.batch.sequences / mesh.replicas);
    program.batch.slice = (if dealt { replica } else { replica * slice }, slice);
    program.batch.stride = if dealt { mesh.replicas } else { 1 };
    // A GPU's state is copied to the host's memory, which is not planned.
    program.copies_saved_state = program.device == Device::Cpu && program.saves_while_training();
    program
}

/// Inserts the instructions that give a rank the current weights before its evaluations and samples, and that free them afterwards.
fn exchange_weights_for_evaluations(program: &mut Program) {
    let (exchange, release) = (program.weight_exchange(), program.weight_release());
    if !program.start.is_empty() {
        program.start.splice(0..0, exchange.clone());
        program.start.extend(release.clone());
    }
    let reads = |p: &Periodic| matches!(p.instruction, Instruction::Evaluate | Instruction::Sample);
    if let Some(first) = program.periodic.iter().position(reads) {
        let intervals: Vec<u64> = program.periodic.iter().filter(|p| reads(p)).flat_map(Periodic::intervals).collect();
        let with_period = |instruction| Periodic::at_any(intervals.clone(), instruction);
        let end = program.periodic.iter().rposition(reads).map_or(first, |last| last + 1);
        program.periodic.splice(end..end, release.into_iter().filter_map(with_period));
        program.periodic.splice(first..first, exchange.into_iter().filter_map(with_period));
    }
}

/// The plan of each rank: its costs and its program.
pub(crate) fn rank_plans(
    programs: Vec<Program>,
    executions: &[ExecutionSummary],
    hardware: Vec<DeviceFacts>,
    basis: MemoryBasis,
) -> Vec<RankPlan> {
    // The memory of the first rank contains the command, unless each rank is one.
    let mut known: Option<((CostClass, usize, bool), RankPlan)> = None;
    let mut out = Vec::with_capacity(programs.len());
    for ((program, execution), hardware) in programs.into_iter().zip(executions).zip(hardware) {
        let key = (program.cost_class(), hardware.threads, program.rank == 0);
        let mut rank = match known.take().filter(|(k, _)| *k == key) {
            Some((_, same)) => same,
            None => rank_plan(&program, execution, &hardware, basis),
        };
        rank.rank = program.rank;
        rank.replica = program.replica();
        (rank.device, rank.hardware, rank.program) = (hardware.device, hardware, program);
        known = Some((key, rank.clone()));
        out.push(rank);
    }
    out
}

/// The plan of the rank of `program`.
fn rank_plan(program: &Program, execution: &ExecutionSummary, hardware: &DeviceFacts, basis: MemoryBasis) -> RankPlan {
    let tokens = (program.batch.slice.1 * program.batch.length) as u64;
    RankPlan {
        rank: program.rank,
        device: hardware.device,
        hardware: hardware.clone(),
        stage: program.stage(),
        replica: program.replica(),
        chunks: program.chunks.clone(),
        in_flight: execution.in_flight(),
        precision: precision::describe(program.precision, program.master_weights, hardware.device).to_owned(),
        params: count_chunks(&program.model, &program.chunks),
        memory: estimate(program, &execution.live, hardware, basis),
        flops: flops(&program.model, program.recompute, &program.chunks, tokens, program.batch.length),
        program: program.clone(),
    }
}

/// FLOPs of several parts of a model.
pub(crate) fn flops(
    model: &ModelSpec,
    recompute: Recompute,
    chunks: &[BlockRange],
    tokens: u64,
    length: usize,
) -> Flops {
    let (convention, decoder) = (cost::CONVENTION.to_owned(), model.decoder());
    let mut sum = Flops { forward: 0.0, backward: 0.0, recomputed: 0.0, step: 0.0, convention };
    for chunk in chunks {
        let part = cost::flops(model, &chunk.range(), tokens, length);
        sum.forward += part.forward;
        sum.backward += part.backward;
        for (layer, times) in decoder.layers.count_in(chunk.range()) {
            sum.recomputed += times as f64 * tokens as f64 * layer.recomputed_flops(recompute, length);
        }
        sum.step += part.step;
    }
    sum
}

/// The costs of blocks relative to each other, by which a partition is balanced, and their source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockTimes {
    costs: BlockCosts,
    source: &'static str,
}

impl BlockTimes {
    /// Takes the costs from the data sheet of the first device, or else from the FLOPs of the matrix products. Measured times do not
    /// change the partition: they differ between calibrations, and a plan that changed with them would be a different run.
    pub(crate) fn new(common: &Program, hardware: &[DeviceFacts], cluster: &ClusterFacts) -> Self {
        let assumed = hardware.first().and_then(|device| {
            let rates = cluster.rates.devices.get(&device.name)?;
            if matches!(rates, DeviceRates::Measured(_)) {
                return None;
            }
            let sharers = hardware.iter().filter(|d| (d.node, d.device) == (device.node, device.device)).count();
            // Recomputation does not change how layers are divided, so that it changes no number.
            let timer = BlockTimer { program: common, recompute: Recompute::None, device, rates, sharers };
            let rows = common.batch.micro_batch.min(common.batch.sequences);
            let seconds = timer.block_seconds(rows, common.batch.length)?;
            let [embedding, layer, head] = [seconds.embedding, seconds.layer, seconds.head].map(BlockSeconds::total);
            Some(Self { costs: BlockCosts { embedding, layer, head }, source: "by assumed times" })
        });
        assumed.unwrap_or_else(|| Self { costs: block_costs(&common.model, common.batch.length), source: "by FLOPs" })
    }
}

/// The costs of blocks relative to each other, counted as FLOPs of their matrix products.
fn block_costs(model: &ModelSpec, length: usize) -> BlockCosts {
    let (forward, head) = (|blocks| cost::forward_flops(model, &blocks, length), model.layers + 1);
    BlockCosts {
        embedding: forward(0..1),
        layer: forward(1..head) / model.layers as f64,
        head: forward(head..head + 1),
    }
}
