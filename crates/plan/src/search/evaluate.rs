//! The memory, the bytes on the wire and the time of a layout, without its whole plan: from one rank of each kind that differs in cost.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use super::layout::{Layout, PipelineShape};
use crate::PlanError;
use crate::check::{INITIAL_CHANNEL_SLOTS, live_during_passes};
use crate::error::Result;
use crate::forecast::cost::count_chunks;
use crate::forecast::simulate::simulate;
use crate::forecast::step_costs::{CostedRank, PlanCosts};
use crate::forecast::wire::{bytes_sent_by_stage, message_bytes};
use crate::memory::shortage::worst_device;
use crate::memory::{MemoryBasis, estimate};
use crate::ranks::devices;
use crate::ranks::shard::{INDIVISIBLE, divide_parameters, gathered_element_bytes};
use crate::ranks::{self, BlockTimes, RankLayout, replica_program};
use crate::schedule::ScheduledPass;
use crate::step_program::step_instructions;
use runner_spec::cluster::{ClusterFacts, DeviceFacts};
use runner_spec::experiment::{Experiment, ParallelMode, ShardedState};
use runner_spec::mesh::Mesh;
use runner_spec::precision;
use runner_spec::program::{BlockRange, Device, Program};

/// More slots in a channel than this are never needed.
const MAX_CHANNEL_SLOTS: usize = 1 << 16;

/// The costs of a layout that fits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LayoutCosts {
    /// Seconds that a step takes at least, or that it takes, if it was simulated.
    pub seconds: f64,
    /// Bytes that the largest rank needs.
    pub memory: u64,
    /// Bytes that all ranks send in a step.
    pub sent: u64,
}

/// The reason why a layout is left out.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Unfit {
    /// A device lacks this many bytes.
    Memory(u64),
    /// Its state cannot be divided, or there are too many micro-batches.
    Refused(String),
    /// The speed of a device, or of the links between ranks, is unknown.
    UnknownSpeed(String),
}

impl From<PlanError> for Unfit {
    fn from(error: PlanError) -> Self {
        Self::Refused(match error {
            // One reason for all numbers of replicas and tensors.
            PlanError::Value { key, message } if key == "parallel.shard" && message.contains(INDIVISIBLE) => {
                "parallel.shard: a stage has fewer tensors than replicas".to_owned()
            }
            other => other.to_string(),
        })
    }
}

/// The devices of the ranks of a mesh.
struct MeshDevices {
    facts: Vec<DeviceFacts>,
    /// For each rank, the first rank whose device is like its own.
    alike: Vec<usize>,
    /// True if a device has several ranks.
    shared: bool,
}

/// Evaluates layouts of one experiment on one cluster.
pub(super) struct Evaluator<'a> {
    experiment: &'a Experiment,
    cluster: &'a ClusterFacts,
    /// What the programs of all layouts have in common.
    common: Program,
    devices: HashMap<Mesh, Result<Rc<MeshDevices>, PlanError>>,
    shards: KnownShards,
}

/// Ranks of a stage that cost the same, or no more than the one with the largest shard.
struct RankKind {
    /// The first rank on such a device, whether it is dp's root or writes what the others do not, and the length of its shard.
    key: (usize, bool, usize),
    /// The replica with the largest shard.
    largest: usize,
    ranks: Vec<usize>,
}

/// The shards of the parameters of some blocks, by the number of replicas.
type KnownShards = HashMap<(Vec<BlockRange>, usize), Result<Vec<Range<usize>>, PlanError>>;

/// The ranks of a layout that differ in cost, and the parts of the plan that they are made from.
struct Representatives {
    layout: RankLayout,
    devices: Rc<MeshDevices>,
    /// For each stage, one rank of each kind, and the ranks of that kind.
    stages: Vec<Vec<(Program, Vec<usize>)>>,
}

impl<'a> Evaluator<'a> {
    /// `program` is that of a rank of `experiment` under any layout.
    pub(super) fn new(experiment: &'a Experiment, cluster: &'a ClusterFacts, program: &Program) -> Self {
        let common = Program {
            step: Vec::new(),
            start: Vec::new(),
            chunks: Vec::new(),
            buckets: Vec::new(),
            shards: Vec::new(),
            sharded: ShardedState::default(),
            copies_saved_state: false,
            ..program.clone()
        };
        Self { experiment, cluster, common, devices: HashMap::new(), shards: HashMap::new() }
    }

    /// The memory of `layout`, whose stages run `passes`, the bytes that it sends, and the least time of its step.
    pub(super) fn bounds(
        &mut self,
        layout: &Layout,
        shape: PipelineShape,
        passes: &[Vec<ScheduledPass>],
    ) -> Result<LayoutCosts, Unfit> {
        let ranks = self.representatives(layout)?;
        let memory = self.memory(&ranks, passes, INITIAL_CHANNEL_SLOTS)?;
        let sent = self.bytes_sent(&ranks, passes);
        let seconds = self.costs(&ranks)?.shortest_step(shape.splits_backwards());
        Ok(LayoutCosts { seconds, memory, sent })
    }

    /// Bytes that the largest rank of `layout` needs.
    pub(super) fn memory_of(&mut self, layout: &Layout, passes: &[Vec<ScheduledPass>]) -> Result<u64, Unfit> {
        let ranks = self.representatives(layout)?;
        self.memory(&ranks, passes, INITIAL_CHANNEL_SLOTS)
    }

    /// The costs of `layout` with the time of its simulated step.
    pub(super) fn simulated(
        &mut self,
        layout: &Layout,
        passes: &[Vec<ScheduledPass>],
        bounds: LayoutCosts,
    ) -> Result<LayoutCosts, Unfit> {
        let mut ranks = self.representatives(layout)?;
        let clip_norm = self.experiment.train.clip_norm;
        for (members, passes) in ranks.stages.iter_mut().zip(passes) {
            let (program, _) = &mut members[0];
            program.step = step_instructions(program, passes, clip_norm);
        }
        let costs = self.costs(&ranks)?;
        let programs: Vec<&Program> = costs.stages.iter().map(|stage| stage.program).collect();
        let mut slots = INITIAL_CHANNEL_SLOTS;
        let step = loop {
            match simulate(&programs, slots, &costs) {
                Some(step) => break step,
                None if slots < MAX_CHANNEL_SLOTS => slots *= 2,
                None => return Err(Unfit::Refused("its ranks wait for each other".to_owned())),
            }
        };
        let memory = if slots == INITIAL_CHANNEL_SLOTS { bounds.memory } else { self.memory(&ranks, passes, slots)? };
        Ok(LayoutCosts { seconds: step.seconds, memory, ..bounds })
    }

    /// The layers of each part of `layout`.
    pub(super) fn partition(&mut self, layout: &Layout) -> Result<Vec<usize>, Unfit> {
        Ok(self.representatives(layout)?.layout.counts)
    }

    fn mesh_devices(&mut self, mesh: Mesh) -> Result<Rc<MeshDevices>, PlanError> {
        let (experiment, cluster) = (self.experiment, self.cluster);
        let find = || {
            let listed = &experiment.parallel.devices;
            let facts = devices::choose_devices(listed, experiment.device, mesh, cluster, &mut Vec::new())?;
            let like = |a: &DeviceFacts, b: &DeviceFacts| {
                (&a.name, a.threads, a.memory_bytes, a.compute_capability)
                    == (&b.name, b.threads, b.memory_bytes, b.compute_capability)
            };
            let first = |rank: usize| (0..rank).find(|other| like(&facts[*other], &facts[rank])).unwrap_or(rank);
            let alike = (0..facts.len()).map(first).collect();
            let place = |facts: &DeviceFacts| (facts.node, facts.device);
            let shared = facts.len() > 1 && place(&facts[0]) == place(&facts[1]);
            Ok(Rc::new(MeshDevices { facts, alike, shared }))
        };
        self.devices.entry(mesh).or_insert_with(find).clone()
    }

    fn representatives(&mut self, layout: &Layout) -> Result<Representatives, Unfit> {
        let parallel = &layout.parallel;
        let mesh = ranks::mesh(parallel, self.experiment.batch.sequences)?;
        let devices = self.mesh_devices(mesh)?;
        if (devices.facts[0].device == Device::Cpu) != (self.common.device == Device::Cpu) {
            return Err(Unfit::Refused("a different kind of device would be used".to_owned()));
        }
        let mut common = Program { mesh, recompute: layout.recompute, ..self.common.clone() };
        common.batch.micro_batch = layout.micro_batch;
        let times = BlockTimes::new(&common, &devices.facts, self.cluster);
        let rank_layout = RankLayout::new(parallel, &common, &times, &mut Vec::new())?;
        let mut stages = Vec::with_capacity(mesh.stages);
        for stage in 0..mesh.stages {
            let of_stage = rank_layout.stage_program(parallel, &common, stage, |program| {
                let divide = || divide_parameters(program, mesh.replicas, &devices.facts);
                self.shards.entry((program.chunks.clone(), mesh.replicas)).or_insert_with(divide).clone()
            })?;
            // Replicas on separate devices need no more than the one with the largest shard.
            let shard = |replica: usize| of_stage.shards.get(replica).map_or(0, Range::len);
            let is_special = |replica: usize| replica == 0 && (mesh.mode == ParallelMode::Dp || devices.shared);
            let mut kinds: Vec<RankKind> = Vec::new();
            for replica in 0..mesh.replicas {
                let rank = mesh.rank(stage, replica);
                let length = if devices.shared { shard(replica) } else { 0 };
                let key = (devices.alike[rank], is_special(replica), length);
                match kinds.iter_mut().find(|kind| kind.key == key) {
                    Some(kind) => {
                        if shard(replica) > shard(kind.largest) {
                            kind.largest = replica;
                        }
                        kind.ranks.push(rank);
                    }
                    None => kinds.push(RankKind { key, largest: replica, ranks: vec![rank] }),
                }
            }
            let member = |kind: RankKind| (replica_program(&of_stage, stage, kind.largest, &devices.facts), kind.ranks);
            stages.push(kinds.into_iter().map(member).collect());
        }
        Ok(Representatives { layout: rank_layout, devices, stages })
    }

    /// Bytes that the largest rank needs, where channels hold `slots` messages.
    fn memory(&self, ranks: &Representatives, passes: &[Vec<ScheduledPass>], slots: usize) -> Result<u64, Unfit> {
        let facts = &ranks.devices.facts;
        let cluster = self.cluster;
        let basis = MemoryBasis { kernels: cluster.kernels, slots, is_launched: cluster.has_launcher() };
        // With and without copies of saved states, which are made where there is room.
        let (mut needs, mut without) = (vec![0; facts.len()], vec![0; facts.len()]);
        for (members, passes) in ranks.stages.iter().zip(passes) {
            let live = live_during_passes(&members[0].0, passes);
            for (program, of_kind) in members {
                let hardware = &facts[program.rank];
                let memory = estimate(program, &live, hardware, basis);
                for rank in of_kind {
                    (needs[*rank], without[*rank]) = (memory.total(), memory.total() - memory.checkpoint);
                }
            }
        }
        let over = |needs: &[u64]| worst_device(facts.iter().zip(needs.iter().copied()));
        let needs = if over(&needs).is_some() { without } else { needs };
        match over(&needs) {
            Some((_, bytes)) => Err(Unfit::Memory(bytes)),
            None => Ok(needs.into_iter().max().unwrap_or(0)),
        }
    }

    /// Bytes that all ranks send in a step.
    fn bytes_sent(&self, ranks: &Representatives, passes: &[Vec<ScheduledPass>]) -> u64 {
        let first = &ranks.stages[0][0].0;
        if ranks.stages.len() == 1 {
            let step = step_instructions(first, &passes[0], self.experiment.train.clip_norm);
            return bytes_sent_by_stage(&Program { step, ..first.clone() });
        }
        let rows = first.batch.sequences as u64;
        let (element, others) = (precision::state_bytes(first.master_weights), first.mesh.replicas as u64 - 1);
        let of_stage = |(program, _): &(Program, Vec<usize>)| {
            let gathered = if program.shards.is_empty() { 0 } else { gathered_element_bytes(program) };
            let total = count_chunks(&program.model, &program.chunks).total;
            let tied =
                if program.shares_tied() { (program.model.vocab_size * program.model.d_model) as u64 } else { 0 };
            others * total * (2 * element + gathered) + (others + 1) * tied * element
        };
        let sums: u64 = ranks.stages.iter().map(|members| of_stage(&members[0])).sum();
        let starts = ranks.stages.iter().flat_map(|members| &members[0].0.chunks).map(|chunk| chunk.start);
        let messages = starts.filter(|start| *start > 0).map(|start| 2 * message_bytes(first, rows, start));
        messages.sum::<u64>() + sums
    }

    fn costs<'r>(&'r self, ranks: &'r Representatives) -> Result<PlanCosts<'r>, Unfit> {
        let facts = &ranks.devices.facts;
        let costed = |(program, _): &'r (Program, Vec<usize>)| CostedRank {
            program,
            hardware: &facts[program.rank],
            params: count_chunks(&program.model, &program.chunks),
        };
        let stages: Vec<Vec<_>> = ranks.stages.iter().map(|of| of.iter().map(costed).collect()).collect();
        let hardware: Vec<&DeviceFacts> = facts.iter().collect();
        PlanCosts::new(&stages, &hardware, self.cluster).ok_or_else(|| Unfit::UnknownSpeed(facts[0].name.clone()))
    }
}
