//! The times of a plan's instructions on its devices and links.

use std::collections::{BTreeSet, HashMap};

use crate::block_time::{BlockKindSeconds, BlockTimer};
use crate::cost::block_params;
use crate::shard::gathered_element_bytes;
use crate::simulate::{StepCosts, Transfer};
use runner_spec::cluster::ClusterFacts;
use runner_spec::forecast::ForecastBasis;
use runner_spec::plan::RankPlan;
use runner_spec::precision;
use runner_spec::program::{BlockRange, Device, Instruction, Program};
use runner_spec::rates::{BlockSeconds, DeviceRates, Link, Links};

/// The stages of a plan with the times of their work.
#[derive(Debug)]
pub(crate) struct PlanCosts<'a> {
    pub stages: Vec<StageCosts<'a>>,
    pub basis: ForecastBasis,
    /// Devices that the ranks run on.
    pub devices: usize,
    /// Parameters of each block.
    params: Vec<u64>,
    /// The links of each stage.
    links: Vec<StageLinks>,
}

/// One stage, by its first replica; times are those of its slowest.
#[derive(Debug)]
pub(crate) struct StageCosts<'a> {
    pub rank: &'a RankPlan,
    /// For a whole micro-batch, and for the last, which may be smaller.
    full: BlockKindSeconds,
    last: BlockKindSeconds,
    update: f64,
    norm: f64,
}

/// The links between the replicas of a stage, and from this stage to each other one.
#[derive(Debug)]
struct StageLinks {
    /// For a sum over the replicas; `None` for one replica.
    replicas: Option<GroupLink>,
    /// To every other stage.
    peers: Vec<Link>,
    /// Over all ranks.
    world: Option<GroupLink>,
}

/// A group's slowest link, and the seconds from one end of the group to the other.
#[derive(Debug, Clone, Copy)]
struct GroupLink {
    link: Link,
    latency: f64,
}

impl<'a> PlanCosts<'a> {
    /// `None` where a rate is missing.
    pub(crate) fn new(ranks: &'a [RankPlan], cluster: &'a ClusterFacts) -> Option<Self> {
        let first = ranks.first()?;
        let mesh = first.program.mesh;
        let mut sharers: HashMap<(usize, Device), usize> = HashMap::new();
        for rank in ranks {
            *sharers.entry((rank.hardware.node, rank.device)).or_default() += 1;
        }
        let mut stages: Vec<StageCosts<'a>> = Vec::with_capacity(mesh.stages);
        let mut basis = ForecastBasis::Measured;
        for stage in 0..mesh.stages {
            let members = &ranks[mesh.rank(stage, 0)..mesh.rank(stage, 0) + mesh.replicas];
            let mut seen = BTreeSet::new();
            let mut slowest: Option<StageCosts<'a>> = None;
            for rank in members {
                let shared = sharers[&(rank.hardware.node, rank.device)];
                let key = (rank.hardware.name.as_str(), rank.hardware.threads, shared, rank.program.cost_class());
                if !seen.insert(key) {
                    continue;
                }
                let rates = cluster.rates.devices.get(&rank.hardware.name)?;
                basis = match rates {
                    DeviceRates::Accelerator(_) => ForecastBasis::Assumed,
                    DeviceRates::Measured(rates) if rates.disturbance.is_some() && basis == ForecastBasis::Measured => {
                        ForecastBasis::Disturbed
                    }
                    DeviceRates::Measured(_) => basis,
                };
                let timed = StageCosts::new(rank, rates, shared)?;
                slowest = Some(match slowest {
                    None => timed,
                    Some(other) => other.slower(&timed),
                });
            }
            stages.push(slowest?);
        }
        let gpus = ranks.iter().any(|rank| rank.device != Device::Cpu);
        let rates = &cluster.rates;
        let links = stage_links(ranks, if gpus { rates.gpu_links.or(rates.links) } else { rates.links })?;
        Some(Self { stages, basis, devices: sharers.len(), params: block_params(&first.program.model), links })
    }

    fn block_range(&self, stage: usize, mb: usize, blocks: BlockRange) -> BlockSeconds {
        let timed = &self.stages[stage];
        let batch = &timed.rank.program.batch;
        let full = batch.rows(mb).1 == batch.micro_batch.min(batch.slice.1);
        let seconds = if full { &timed.full } else { &timed.last };
        let layers = timed.rank.program.model.layers;
        let mut sum = BlockSeconds::default();
        for block in blocks.range() {
            let one = seconds.of_block(block, layers);
            sum.forward += one.forward;
            sum.input += one.input;
            sum.weight += one.weight;
        }
        sum
    }

    /// Bytes of gradients of `blocks` on `program`'s rank.
    fn gradient_bytes(&self, program: &Program, blocks: BlockRange) -> f64 {
        let mut n: u64 = self.params[blocks.range()].iter().sum();
        let spec = &program.model;
        let head = blocks.contains(spec.layers + 1);
        // A last stage has its own copy of the tied embedding.
        if head && spec.tie_embeddings && !program.chunks.iter().any(|c| c.contains(0)) {
            n += (spec.vocab_size * spec.d_model) as u64;
        }
        gradient_element(program) * n as f64
    }
}

impl<'a> StageCosts<'a> {
    fn new(rank: &'a RankPlan, rates: &'a DeviceRates, sharers: usize) -> Option<Self> {
        let p = &rank.program;
        let timer = BlockTimer { program: p, recompute: p.recompute, device: &rank.hardware, rates, sharers };
        let full = p.batch.micro_batch.min(p.batch.slice.1);
        let rest = match p.batch.slice.1 % full {
            0 => full,
            rest => rest,
        };
        let full_seconds = timer.block_seconds(full, p.batch.length)?;
        let update = timer.update_seconds(&rank.params, p.owns_optimizer().then_some(p.optimizer))?;
        // The norm is one of the nine passes that AdamW makes over the parameters. For other optimizers this is an approximation.
        let norm = update / 9.0;
        // A rank that holds a shard updates only that.
        let share = p.shard().map_or(1.0, |shard| shard.len() as f64 / rank.params.total as f64);
        Some(Self {
            rank,
            full: full_seconds,
            last: if rest == full { full_seconds } else { timer.block_seconds(rest, p.batch.length)? },
            update: (update - norm) * share,
            norm,
        })
    }

    /// The one whose layers take longer.
    fn slower(self, other: &Self) -> Self {
        let update = self.update.max(other.update);
        let norm = self.norm.max(other.norm);
        if other.full.layer.total() > self.full.layer.total() {
            Self { rank: self.rank, full: other.full, last: other.last, update, norm }
        } else {
            Self { update, norm, ..self }
        }
    }
}

impl StepCosts for PlanCosts<'_> {
    fn compute(&self, stage: usize, program: &Program, instruction: &Instruction) -> f64 {
        let whole = |chunk: usize| program.chunks[chunk];
        match *instruction {
            Instruction::Forward { mb, chunk, blocks } => {
                self.block_range(stage, mb, blocks.unwrap_or(whole(chunk))).forward
            }
            Instruction::Backward { mb, chunk, blocks } => {
                self.block_range(stage, mb, blocks.unwrap_or(whole(chunk))).backward()
            }
            Instruction::BackwardInput { mb, chunk } => self.block_range(stage, mb, whole(chunk)).input,
            Instruction::BackwardWeight { mb, chunk, blocks } => {
                self.block_range(stage, mb, blocks.unwrap_or(whole(chunk))).weight
            }
            Instruction::ClipNorm { .. } => self.stages[stage].norm,
            Instruction::OptimizerStep | Instruction::ZeroGradients => self.stages[stage].update,
            _ => 0.0,
        }
    }

    fn message(&self, from: usize, to: usize, program: &Program, mb: usize) -> Transfer {
        let link = self.links[from].peers[to];
        let element = precision::activation_bytes(program.precision) as f64;
        let positions = (program.batch.rows(mb).1 * program.batch.length) as f64;
        let bytes = positions * program.model.d_model as f64 * element;
        Transfer {
            latency: link.latency,
            seconds: bytes / link.bytes_per_second,
            copied_by_ranks: link.copied_by_ranks,
        }
    }

    fn collective(&self, stage: usize, program: &Program, instruction: &Instruction) -> f64 {
        let links = &self.links[stage];
        let replicas = program.mesh.replicas as f64;
        // A ring: every member sends and receives 2(n-1)/n of the bytes. Its turns wait for each hop within a node, and for
        // a tree over the nodes, up and down.
        let ring = |reach: Option<GroupLink>, n: f64, bytes: f64| {
            reach
                .filter(|_| n > 1.0)
                .map_or(0.0, |r| 2.0 * (n - 1.0) / n * bytes / r.link.bytes_per_second + 2.0 * r.latency)
        };
        // Pieces follow one another down a line, so a broadcast or a sum into one costs its bytes once.
        let line = |bytes: f64| links.world.map_or(0.0, |r| bytes / r.link.bytes_per_second + r.latency);
        match *instruction {
            Instruction::AllReduce { bucket } => {
                ring(links.replicas, replicas, self.gradient_bytes(program, program.buckets[bucket]))
            }
            // The sum of an element goes to one replica only: half of a ring.
            Instruction::ReduceScatter { bucket } => {
                0.5 * ring(links.replicas, replicas, self.gradient_bytes(program, program.buckets[bucket]))
            }
            // Every rank's shard goes to all others, piece after piece.
            Instruction::GatherParameters { bucket } | Instruction::PrefetchParameters { bucket } => {
                links.replicas.map_or(0.0, |reach| {
                    let elements = self.gradient_bytes(program, program.buckets[bucket]) / gradient_element(program);
                    elements * gathered_element_bytes(program) as f64 / reach.link.bytes_per_second + reach.latency
                })
            }
            Instruction::ReduceToRoot { bucket } => line(self.gradient_bytes(program, program.buckets[bucket])),
            Instruction::BroadcastWeights => {
                line(gradient_element(program) * self.stages[stage].rank.params.total as f64)
            }
            // A few numbers.
            Instruction::CountTokens { .. } | Instruction::ClipNorm { .. } => {
                links.world.map_or(0.0, |r| 2.0 * r.latency)
            }
            Instruction::SumTied => {
                let link = links.peers[if stage == 0 { program.mesh.stages - 1 } else { 0 }];
                let bytes = gradient_element(program) * (program.model.vocab_size * program.model.d_model) as f64;
                ring(Some(GroupLink { link, latency: link.latency }), 2.0, bytes)
            }
            _ => 0.0,
        }
    }
}

/// Bytes of a gradient of `program`, or of a weight.
fn gradient_element(program: &Program) -> f64 {
    precision::state_bytes(program.master_weights) as f64
}

/// The links of each stage, the slowest where several matter. `None` if there is more than one rank and no links are known.
fn stage_links(ranks: &[RankPlan], links: Option<Links>) -> Option<Vec<StageLinks>> {
    let mesh = ranks.first()?.program.mesh;
    if ranks.len() == 1 {
        return Some(vec![StageLinks { replicas: None, peers: vec![LOCAL], world: None }]);
    }
    let links = links?;
    let node = |rank: usize| ranks[rank].hardware.node;
    // A group has its part of a node's adapters: stages on a node communicate at the same time.
    let mut stages_on: HashMap<usize, BTreeSet<usize>> = HashMap::new();
    let mut ranks_on: HashMap<usize, usize> = HashMap::new();
    for rank in ranks {
        stages_on.entry(rank.hardware.node).or_default().insert(rank.stage);
        *ranks_on.entry(rank.hardware.node).or_default() += 1;
    }
    let between = |sharers: usize| Link {
        bytes_per_second: (links.between.bytes_per_second / sharers.max(1) as f64).min(links.within.bytes_per_second),
        ..links.between
    };
    let sharing = |rank: usize| stages_on[&node(rank)].len();
    let reach = |members: std::ops::Range<usize>, link: Link| {
        let mut on: HashMap<usize, usize> = HashMap::new();
        for rank in members {
            *on.entry(node(rank)).or_default() += 1;
        }
        let within = on.values().max().map_or(0, |n| n - 1) as f64 * links.within.latency;
        let between = (on.len() as f64).log2().ceil() * links.between.latency;
        let link = if on.len() > 1 { link } else { links.within };
        GroupLink { link, latency: within + between }
    };
    let world = reach(0..ranks.len(), between(1));
    let links_of_stage = |stage: usize| {
        let first = mesh.rank(stage, 0);
        let group = first..first + mesh.replicas;
        let most = group.clone().map(sharing).max().unwrap_or(1);
        let replicas = (mesh.replicas > 1).then(|| reach(group, between(most)));
        let peer = |other: usize| {
            let apart = (0..mesh.replicas).find(|&r| node(mesh.rank(stage, r)) != node(mesh.rank(other, r)));
            apart.map_or(links.within, |r| between(ranks_on[&node(mesh.rank(stage, r))]))
        };
        StageLinks { replicas, peers: (0..mesh.stages).map(peer).collect(), world: Some(world) }
    };
    Some((0..mesh.stages).map(links_of_stage).collect())
}

/// A rank's link to itself, which no message takes.
const LOCAL: Link = Link { bytes_per_second: f64::INFINITY, latency: 0.0, copied_by_ranks: false };
