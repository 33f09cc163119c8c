//! The times of a plan's instructions on its devices and links.

use std::collections::{BTreeSet, HashMap};

use crate::forecast::block_time::{BlockKindSeconds, BlockTimer};
use crate::forecast::cost::block_params;
use crate::forecast::simulate::{Message, StepCosts, Transfer};
use crate::forecast::wire::bytes_of_rows;
use crate::ranks::shard::gathered_element_bytes;
use runner_spec::cluster::{ClusterFacts, DeviceFacts};
use runner_spec::experiment::Optimizer;
use runner_spec::forecast::ForecastBasis;
use runner_spec::mesh::Mesh;
use runner_spec::model::parts::Linear;
use runner_spec::plan::{ParamCounts, RankPlan};
use runner_spec::precision;
use runner_spec::program::{BlockRange, Device, Instruction, Program};
use runner_spec::rates::{BlockSeconds, DeviceRates, Link, Links};

/// A rank whose costs count. Of ranks that cost the same, one is enough.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CostedRank<'a> {
    pub program: &'a Program,
    pub hardware: &'a DeviceFacts,
    pub params: ParamCounts,
}

/// The stages of a plan with the times of their work.
#[derive(Debug)]
pub(crate) struct PlanCosts<'a> {
    pub stages: Vec<StageCosts<'a>>,
    pub basis: ForecastBasis,
    /// Devices that the ranks run on.
    pub devices: usize,
    /// Parameters of each block.
    params: Vec<u64>,
    /// Numbers of one position that flow into each block.
    widths: Vec<usize>,
    /// The links of each stage.
    links: Vec<StageLinks>,
}

/// One stage, by its first replica; times are those of its slowest.
#[derive(Debug)]
pub(crate) struct StageCosts<'a> {
    pub program: &'a Program,
    params: ParamCounts,
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
    /// The costs of the ranks whose devices are `hardware`, in order. `stages` has the ranks of each stage, the first replica first.
    /// `None` where a rate is missing.
    pub(crate) fn new(
        stages: &[Vec<CostedRank<'a>>],
        hardware: &[&DeviceFacts],
        cluster: &'a ClusterFacts,
    ) -> Option<Self> {
        let first = stages.first()?.first()?.program;
        let mut sharers: HashMap<(usize, Device), usize> = HashMap::new();
        for device in hardware {
            *sharers.entry((device.node, device.device)).or_default() += 1;
        }
        let mut costs: Vec<StageCosts<'a>> = Vec::with_capacity(stages.len());
        let mut basis = ForecastBasis::Measured;
        for members in stages {
            let mut seen = BTreeSet::new();
            let mut slowest: Option<StageCosts<'a>> = None;
            for rank in members {
                let shared = sharers[&(rank.hardware.node, rank.hardware.device)];
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
                let timed = StageCosts::new(*rank, rates, shared)?;
                slowest = Some(match slowest {
                    None => timed,
                    Some(other) => other.slower(&timed),
                });
            }
            costs.push(slowest?);
        }
        let gpus = hardware.iter().any(|device| device.device != Device::Cpu);
        let rates = &cluster.rates;
        let links = if gpus { rates.gpu_links.or(rates.links) } else { rates.links };
        let links = stage_links(first.mesh, hardware, links)?;
        let (params, widths) = (block_params(&first.model), first.model.widths());
        Some(Self { stages: costs, basis, devices: sharers.len(), params, widths, links })
    }

    /// The costs of `ranks`, which are all ranks of a plan.
    pub(crate) fn of_ranks(ranks: &'a [RankPlan], cluster: &'a ClusterFacts) -> Option<Self> {
        let mesh = ranks.first()?.program.mesh;
        let costed =
            |rank: &'a RankPlan| CostedRank { program: &rank.program, hardware: &rank.hardware, params: rank.params };
        let stages: Vec<Vec<_>> = ranks.chunks(mesh.replicas).map(|of| of.iter().map(costed).collect()).collect();
        let hardware: Vec<&DeviceFacts> = ranks.iter().map(|rank| &rank.hardware).collect();
        Self::new(&stages, &hardware, cluster)
    }

    fn block_range(&self, stage: usize, mb: usize, blocks: BlockRange) -> BlockSeconds {
        let timed = &self.stages[stage];
        let batch = &timed.program.batch;
        let full = batch.rows(mb).1 == batch.micro_batch.min(batch.slice.1);
        let seconds = if full { &timed.full } else { &timed.last };
        let layers = timed.program.model.layers;
        let mut sum = BlockSeconds::default();
        for block in blocks.range() {
            let one = seconds.of_block(block, layers);
            sum.forward += one.forward;
            sum.input += one.input;
            sum.weight += one.weight;
        }
        sum
    }

    fn gradient_bytes(&self, program: &Program, blocks: BlockRange) -> f64 {
        gradient_element(program) * gradient_elements(&self.params, program, blocks) as f64
    }

    /// Seconds that no step of these stages can fall below: a stage computes all of its work, after the forwards of the stages before it
    /// and before their backwards, and what its replicas exchange follows the work that makes it.
    ///
    /// If `splits_backwards`, a stage sends the gradient of its input before it computes those of its weights.
    pub(crate) fn shortest_step(&self, splits_backwards: bool) -> f64 {
        let (mut before, mut after, mut longest) = (0.0, 0.0, 0.0_f64);
        let mut update = 0.0_f64;
        for (stage, costs) in self.stages.iter().enumerate() {
            let program = costs.program;
            let last = program.batch.micro_batches().saturating_sub(1);
            let sum = |mb: usize, get: fn(BlockSeconds) -> f64| {
                program.chunks.iter().map(|chunk| get(self.block_range(stage, mb, *chunk))).sum::<f64>()
            };
            let all = |get: fn(BlockSeconds) -> f64| last as f64 * sum(0, get) + sum(last, get);
            let first_chunk = |mb: usize| self.block_range(stage, mb, program.chunks[0]);
            let exchange = |instruction: Instruction| self.collective(stage, program, &instruction);
            // What comes before the first forward, which reads the first bucket, and what the last backwards start.
            let weights: f64 = program.weight_exchange().into_iter().take(1).map(exchange).sum();
            let sums: f64 = (0..program.buckets.len()).map(|bucket| exchange(program.reduction(bucket))).sum();
            let work = all(BlockSeconds::total);
            let start = before + weights;
            // A split backward's gradients of weights may follow the last message to the stage before.
            let deferrable = if splits_backwards { all(|seconds| seconds.weight) } else { 0.0 };
            longest = longest.max(start + work).max(start + work - deferrable + after);
            longest = longest.max(start + work - sum(last, BlockSeconds::total) + sums);
            before += first_chunk(0).forward;
            let backward = first_chunk(last);
            after += if splits_backwards { backward.input } else { backward.backward() };
            update = update.max(costs.update);
        }
        // Every stage waits for the norm of all.
        let norm = self.stages.first().map_or(0.0, |first| {
            let clip = self.collective(0, first.program, &Instruction::ClipNorm { max: None });
            2.0 * clip + self.stages.iter().map(|stage| stage.norm).fold(f64::INFINITY, f64::min)
        });
        longest + norm + update
    }
}

/// Gradients of `blocks` on `program`'s rank, where `params` are the parameters of each block.
pub(crate) fn gradient_elements(params: &[u64], program: &Program, blocks: BlockRange) -> u64 {
    let mut n: u64 = params[blocks.range()].iter().sum();
    let spec = &program.model;
    let head = blocks.contains(spec.layers + 1);
    // A last stage has its own copy of the tied embedding.
    if head && spec.tie_embeddings && !program.chunks.iter().any(|c| c.contains(0)) {
        n += (spec.vocab_size * spec.d_model) as u64;
    }
    n
}

/// Seconds of a FLOP in the products that make a layer's gradients of weights, of `rows` rows.
fn seconds_per_flop(program: &Program, rows: usize, layer: &BlockSeconds) -> f64 {
    let decoder = program.model.decoder();
    let sizes =
        decoder.layers.pattern().iter().map(|layer| layer.products().into_iter().map(Linear::size).sum::<usize>());
    // Without products, attention and MLP are absent, and so are matrices.
    let mean = sizes.sum::<usize>() as f64 / decoder.layers.pattern().len().max(1) as f64;
    let flops = 2.0 * (rows * program.batch.length) as f64 * mean;
    if flops > 0.0 { layer.weight / flops } else { 0.0 }
}

impl<'a> StageCosts<'a> {
    fn new(rank: CostedRank<'a>, rates: &'a DeviceRates, sharers: usize) -> Option<Self> {
        let CostedRank { program: p, hardware, params } = rank;
        let timer = BlockTimer { program: p, recompute: p.recompute, device: hardware, rates, sharers };
        let full = p.batch.micro_batch.min(p.batch.slice.1);
        let rest = match p.batch.slice.1 % full {
            0 => full,
            rest => rest,
        };
        let full_seconds = timer.block_seconds(full, p.batch.length)?;
        let update = timer.update_seconds(&params, p.owns_optimizer().then_some(p.optimizer))?;
        // The norm is one of the passes of the default optimizer over the parameters. For others this is an approximation.
        let norm = update / Optimizer::default().description().passes();
        // A rank that holds a shard updates only that.
        let share = p.shard().map_or(1.0, |shard| shard.len() as f64 / params.total as f64);
        let orthogonalization = match p.orthogonalization_flops() {
            0.0 => 0.0,
            flops => flops * seconds_per_flop(p, full, &full_seconds.layer),
        };
        Some(Self {
            program: p,
            params,
            full: full_seconds,
            last: if rest == full { full_seconds } else { timer.block_seconds(rest, p.batch.length)? },
            update: (update - norm) * share + orthogonalization,
            norm,
        })
    }

    /// The one whose layers take longer.
    fn slower(self, other: &Self) -> Self {
        let update = self.update.max(other.update);
        let norm = self.norm.max(other.norm);
        if other.full.layer.total() > self.full.layer.total() {
            Self { full: other.full, last: other.last, update, norm, ..self }
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

    fn message(&self, from: usize, to: usize, program: &Program, Message { mb, block }: Message) -> Transfer {
        let link = self.links[from].peers[to];
        let bytes = bytes_of_rows(program, program.batch.rows(mb).1 as u64, self.widths[block]) as f64;
        Transfer {
            latency: link.latency,
            seconds: bytes / link.bytes_per_second,
            copied_by_ranks: link.copied_by_ranks,
        }
    }

    fn replicas_copy(&self, stage: usize) -> bool {
        self.links[stage].replicas.is_some_and(|reach| reach.link.copied_by_ranks)
    }

    fn collective(&self, stage: usize, program: &Program, instruction: &Instruction) -> f64 {
        let links = &self.links[stage];
        let replicas = program.mesh.replicas as f64;
        // A ring: every member sends and receives 2(n-1)/n of the bytes. Its turns wait for each hop within a node, and for
        // a tree over the nodes, up and down.
        let ring = |reach: Option<GroupLink>, n: f64, bytes: f64| {
            reach.filter(|_| n > 1.0).map_or(0.0, |r| 2.0 * (n - 1.0) / n * bytes / r.link.sum_rate() + 2.0 * r.latency)
        };
        // Pieces follow one another down a line, so a broadcast or a sum into one costs its bytes once.
        let line = |bytes: f64, rate: fn(&Link) -> f64| links.world.map_or(0.0, |r| bytes / rate(&r.link) + r.latency);
        match *instruction {
            Instruction::AllReduce { bucket } => {
                ring(links.replicas, replicas, self.gradient_bytes(program, program.buckets[bucket]))
            }
            // The sum of an element goes to one replica only: half of a ring. Where replicas copy, each bucket's owner in turn adds the bytes of
            // all others.
            Instruction::ReduceScatter { bucket } => {
                let bytes = self.gradient_bytes(program, program.buckets[bucket]);
                match links.replicas.filter(|reach| reach.link.copied_by_ranks) {
                    Some(reach) => (replicas - 1.0) * bytes / reach.link.sum_rate() + reach.latency,
                    None => 0.5 * ring(links.replicas, replicas, bytes),
                }
            }
            // Every rank's shard goes to all others, piece after piece.
            Instruction::GatherParameters { bucket } | Instruction::PrefetchParameters { bucket } => {
                links.replicas.map_or(0.0, |reach| {
                    let elements = self.gradient_bytes(program, program.buckets[bucket]) / gradient_element(program);
                    elements * gathered_element_bytes(program) as f64 / reach.link.bytes_per_second + reach.latency
                })
            }
            Instruction::ReduceToRoot { bucket } => {
                line(self.gradient_bytes(program, program.buckets[bucket]), Link::sum_rate)
            }
            Instruction::BroadcastWeights => {
                line(gradient_element(program) * self.stages[stage].params.total as f64, |link| link.bytes_per_second)
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
fn stage_links(mesh: Mesh, hardware: &[&DeviceFacts], links: Option<Links>) -> Option<Vec<StageLinks>> {
    if hardware.len() == 1 {
        return Some(vec![StageLinks { replicas: None, peers: vec![LOCAL], world: None }]);
    }
    let links = links?;
    let node = |rank: usize| hardware[rank].node;
    // A group has its part of a node's adapters: stages on a node communicate at the same time.
    let mut stages_on: HashMap<usize, BTreeSet<usize>> = HashMap::new();
    let mut ranks_on: HashMap<usize, usize> = HashMap::new();
    for (rank, device) in hardware.iter().enumerate() {
        stages_on.entry(device.node).or_default().insert(rank / mesh.replicas);
        *ranks_on.entry(device.node).or_default() += 1;
    }
    let between = |sharers: usize| Link {
        bytes_per_second: (links.between.bytes_per_second / sharers.max(1) as f64).min(links.within.bytes_per_second),
        sum_bytes_per_second: None,
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
    let world = reach(0..hardware.len(), between(1));
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
const LOCAL: Link =
    Link { bytes_per_second: f64::INFINITY, latency: 0.0, copied_by_ranks: false, sum_bytes_per_second: None };
