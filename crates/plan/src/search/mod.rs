//! The search for the best layout of an experiment on a cluster: a pure function, like the planner.
//!
//! Every layout's memory, bytes on the wire and least time are computed from one rank of each kind, without its instructions. Layouts that
//! do not fit fall out. The rest are simulated in the order of their least times, until no other can be among the fastest or on the front.
//! What is shown is then compiled, so that its numbers are those of its plan.

mod candidate;
mod evaluate;
mod layout;
mod micro_batch;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;

pub use layout::Layout;
pub use micro_batch::{FittingMicroBatch, largest_micro_batch};

use crate::compile;
use crate::error::{PlanError, Result, refuse};
use crate::forecast::wire::bytes_sent;
use crate::quantity::bytes;
use crate::schedule::{ScheduledPass, schedule};
use candidate::{Candidate, front, insert, stands_for};
use evaluate::{Evaluator, LayoutCosts, Unfit};
use layout::PipelineShape;
use runner_spec::cluster::{ClusterFacts, DeviceFacts};
use runner_spec::data::DataFacts;
use runner_spec::experiment::{AutoOr, Experiment, Parallel, PipelineSchedule, Recompute};
use runner_spec::forecast::ForecastBasis;
use runner_spec::format::{choice_name, count, counted};
use runner_spec::program::{Device, Program};

/// The number of fastest layouts that a search reports.
const BEST: usize = 10;

/// A layout with divided state comes before one without only if its forecast is lower by this share. It is for memory: measured steps of six
/// small models took 3 to 12% longer, compared with the forecast, than those of plain ddp (`benches/layouts.py`, two ranks on two cores).
const SHARD_MARGIN: f64 = 0.05;

/// Layouts with more passes of a rank in a step are left out: the best have far fewer, and their schedules would fill the memory.
const MAX_PASSES: usize = 1 << 16;

const RECOMPUTATIONS: [Recompute; 3] = [Recompute::None, Recompute::Attention, Recompute::Block];

/// Rounds in which layers are moved between the stages of the best pipelines.
const PARTITION_ROUNDS: usize = 8;

/// A planned layout and its costs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankedLayout {
    #[serde(flatten)]
    pub layout: Layout,
    pub ranks: usize,
    pub step_seconds: f64,
    pub tokens_per_second: f64,
    /// Planned peak of the largest rank.
    pub memory_bytes: u64,
    /// Bytes that all ranks together send in a step.
    pub sent_bytes: u64,
    /// The hash of its plan.
    pub hash: String,
    /// The source of the times.
    #[serde(skip)]
    basis: ForecastBasis,
}

impl RankedLayout {
    /// The seconds by which the layout is ranked: those of the forecast, and more if it divides the replicas' state.
    fn rank_seconds(&self) -> f64 {
        self.step_seconds * if self.layout.parallel.shard.is_some() { 1.0 + SHARD_MARGIN } else { 1.0 }
    }
}

/// Why layouts, numbers of replicas or numbers of stages fell out, and how many.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Exclusion {
    pub count: usize,
    pub reason: String,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SearchResult {
    pub experiment_name: String,
    /// The hash of what all layouts compute.
    pub math_hash: String,
    /// The source of the times.
    pub basis: ForecastBasis,
    pub max_ranks: usize,
    /// Layouts that were compared, of which these fit the memory.
    pub layouts: usize,
    pub fit: usize,
    /// Layouts whose step was simulated. The others cannot be faster than the best, nor on the front.
    pub simulated: usize,
    pub excluded: Vec<Exclusion>,
    /// The layouts with the shortest forecasts, which may be in the wrong order.
    pub shortest_forecasts: Vec<RankedLayout>,
    /// From the fastest layout on, those for which no faster one of the front needs and sends at most 25% more.
    pub front: Vec<RankedLayout>,
    /// The layout of the file; `None` if it does not fit or cannot be planned here.
    pub current: Option<RankedLayout>,
    /// The reason why the file's layout is missing.
    pub current_problem: Option<String>,
}

/// How far a search is.
#[derive(Debug, Clone, Copy)]
pub struct SearchProgress {
    /// Layouts that were compared, and those whose step was simulated.
    pub layouts: usize,
    pub simulated: usize,
}

/// Finds the best layouts of `experiment` on the devices of `cluster`: every mode, number of replicas and stages, schedule, micro-batch,
/// recomputation and sharding with the same global batch, balanced partitions and, for the fastest pipelines, those near them. Calls
/// `report` for every layout.
///
/// # Errors
/// Those of [`compile`] that no layout avoids; an unknown speed of a device; if no layout fits.
pub fn search(
    experiment: &Experiment,
    data: &DataFacts,
    cluster: &ClusterFacts,
    report: &dyn Fn(SearchProgress),
) -> Result<SearchResult> {
    let (stages, key) = experiment.earlier_stages();
    if !stages.is_empty() {
        refuse!(
            key,
            "a search ranks layouts by the time of one step, and steps of stages differ; remove it for the search"
        );
    }
    let base = base_layout(experiment).apply(experiment);
    let plan = compile(&base, data, cluster)?;
    let first = &plan.ranks[0];
    let max_ranks = most_ranks(experiment, cluster, &first.hardware);
    let mut search = Search::new(&base, cluster, &first.program, report);
    search.bound_all(&base.parallel, max_ranks)?;
    let simulated = search.simulate_best()?;
    // Simulations compare more partitions, and find layouts that do not fit after all.
    let (layouts, fit) = (search.layouts, search.fit_count());
    let excluded = search.exclusions(max_ranks);
    let ranked = |candidate: &Candidate| rank_layout(&candidate.layout, experiment, data, cluster);
    let mut best = simulated.iter().take(BEST).map(ranked).collect::<Result<Vec<_>>>()?;
    best.sort_by(|a, b| a.rank_seconds().total_cmp(&b.rank_seconds()));
    let Some(basis) = best.first().map(|layout| layout.basis) else {
        let why = excluded.iter().map(|out| out.reason.as_str()).collect::<Vec<_>>().join("; ");
        refuse!("parallel", "no layout fits: {why}");
    };
    let front = front(&simulated).into_iter().map(ranked).collect::<Result<Vec<_>>>()?;
    let current = rank_layout(&Layout::of(experiment), experiment, data, cluster);
    Ok(SearchResult {
        experiment_name: experiment.name.clone(),
        math_hash: plan.math_hash,
        basis,
        max_ranks,
        layouts,
        fit,
        simulated: simulated.len(),
        excluded,
        shortest_forecasts: best,
        front,
        current_problem: current.as_ref().err().map(ToString::to_string),
        current: current.ok(),
    })
}

/// A layout under which `experiment` can be planned if any can: one rank, or the ranks whose devices the file lists.
fn base_layout(experiment: &Experiment) -> Layout {
    let listed = matches!(experiment.parallel.devices, AutoOr::Given(_));
    let Parallel { bucket_mb, max_restarts, .. } = experiment.parallel;
    let parallel =
        if listed { experiment.parallel.clone() } else { Parallel { bucket_mb, max_restarts, ..Parallel::single() } };
    Layout { parallel, micro_batch: experiment.batch.sequences, recompute: Recompute::None }
}

/// The most ranks of a layout: a GPU for each, a thread of one CPU for each, or the devices that the file lists.
fn most_ranks(experiment: &Experiment, cluster: &ClusterFacts, first: &DeviceFacts) -> usize {
    let of_kind = |device: &&DeviceFacts| (device.device == Device::Cpu) == (first.device == Device::Cpu);
    match &experiment.parallel.devices {
        AutoOr::Given(listed) => listed.len(),
        AutoOr::Auto => match cluster.devices.iter().filter(of_kind).count() {
            1 if first.device == Device::Cpu => first.threads,
            devices => devices,
        },
    }
}

/// The plan of `experiment` under `layout`, as a line of the result.
fn rank_layout(
    layout: &Layout,
    experiment: &Experiment,
    data: &DataFacts,
    cluster: &ClusterFacts,
) -> Result<RankedLayout> {
    let plan = compile(&layout.apply(experiment), data, cluster)?;
    if let Some(shortage) = &plan.shortage {
        refuse!("memory", "{}", shortage.trim_start_matches("memory: "));
    }
    let Some(forecast) = &plan.forecast else {
        let name = plan.ranks.first().map_or("the device", |rank| rank.hardware.name.as_str());
        return Err(unknown_speed(name));
    };
    Ok(RankedLayout {
        layout: layout.clone(),
        ranks: plan.world_size,
        step_seconds: forecast.step_seconds,
        tokens_per_second: forecast.tokens_per_second,
        memory_bytes: plan.ranks.iter().map(|rank| rank.memory.total()).max().unwrap_or(0),
        sent_bytes: bytes_sent(&plan),
        hash: plan.hash.clone(),
        basis: forecast.basis,
    })
}

fn unknown_speed(device: &str) -> PlanError {
    PlanError::value(
        "parallel",
        format!(
            "a search ranks layouts by time, but the speed of {device} or of its links is unknown; run `runner calibrate` to measure this \
             machine's CPU, or describe the devices in a cluster file (`--cluster`)"
        ),
    )
}

/// The layouts of a search so far.
struct Search<'a> {
    evaluator: Evaluator<'a>,
    sequences: usize,
    layers: usize,
    /// The number of ranks, if the file lists their devices.
    only_ranks: Option<usize>,
    one_machine: bool,
    layouts: usize,
    fit: Vec<Candidate>,
    /// Layouts that cannot be planned, by their reasons.
    refused: BTreeMap<String, usize>,
    too_large: usize,
    /// The layout that lacks the least memory, and how much.
    closest: Option<(u64, Layout)>,
    simulations: usize,
    report: &'a dyn Fn(SearchProgress),
}

impl<'a> Search<'a> {
    /// A search for `experiment`; `program` is that of a rank under any layout.
    fn new(
        experiment: &'a Experiment,
        cluster: &'a ClusterFacts,
        program: &Program,
        report: &'a dyn Fn(SearchProgress),
    ) -> Self {
        let listed = match &experiment.parallel.devices {
            AutoOr::Given(listed) => Some(listed.len()),
            AutoOr::Auto => None,
        };
        Self {
            evaluator: Evaluator::new(experiment, cluster, program),
            sequences: experiment.batch.sequences,
            layers: program.model.layers,
            only_ranks: listed,
            one_machine: cluster.devices.iter().all(|device| device.node == cluster.devices[0].node),
            layouts: 0,
            fit: Vec::new(),
            refused: BTreeMap::new(),
            too_large: 0,
            closest: None,
            simulations: 0,
            report,
        }
    }

    fn report(&self) {
        (self.report)(SearchProgress { layouts: self.layouts, simulated: self.simulations });
    }

    /// Bounds the costs of every layout.
    ///
    /// # Errors
    /// If the speed of a device is unknown.
    fn bound_all(&mut self, parallel: &Parallel, max_ranks: usize) -> Result<()> {
        let divisors = divisors(self.sequences);
        for shape in PipelineShape::all(max_ranks, self.layers) {
            for &micro_batches in &divisors {
                let takes = |replicas: usize| {
                    let ranks = shape.stages * replicas;
                    ranks <= max_ranks
                        && self.only_ranks.is_none_or(|only| ranks == only)
                        && (self.sequences / replicas).is_multiple_of(micro_batches)
                };
                let takers: Vec<usize> = divisors.iter().copied().filter(|replicas| takes(*replicas)).collect();
                if takers.is_empty() {
                    continue;
                }
                if shape.schedule == PipelineSchedule::Interleaved && !micro_batches.is_multiple_of(shape.stages) {
                    let why =
                        "the number of micro-batches is not a multiple of the stages, which interleaved_1f1b needs";
                    self.refuse_all(shape, &takers, why);
                    continue;
                }
                if 2 * micro_batches * shape.chunks > MAX_PASSES {
                    let most = count(MAX_PASSES as u64);
                    self.refuse_all(shape, &takers, &format!("more than {most} passes of a rank in a step"));
                    continue;
                }
                let passes = schedule(shape.schedule, shape.stages, shape.chunks, micro_batches);
                for replicas in takers {
                    self.bound_layouts(parallel, shape, (replicas, micro_batches), &passes)?;
                }
            }
        }
        Ok(())
    }

    /// Counts the layouts of `shape` with each of these numbers of `replicas` as refused.
    fn refuse_all(&mut self, shape: PipelineShape, replicas: &[usize], why: &str) {
        let of = |replicas: &usize| RECOMPUTATIONS.len() * shape.modes(*replicas, self.one_machine).len();
        let layouts = replicas.iter().map(of).sum::<usize>();
        *self.refused.entry(why.to_owned()).or_default() += layouts;
        self.layouts += layouts;
    }

    fn bound_layouts(
        &mut self,
        parallel: &Parallel,
        shape: PipelineShape,
        (replicas, micro_batches): (usize, usize),
        passes: &[Vec<ScheduledPass>],
    ) -> Result<()> {
        let micro_batch = self.sequences / replicas / micro_batches;
        for (mode, shard) in shape.modes(replicas, self.one_machine) {
            let pipeline = shape.pipeline(micro_batches, AutoOr::Auto);
            let parallel = Parallel { mode, replicas, shard, pipeline, ..parallel.clone() };
            for recompute in RECOMPUTATIONS {
                let layout = Layout { parallel: parallel.clone(), micro_batch, recompute };
                if !self.bound(&layout, shape, passes)? && shape.stages > 1 {
                    // A balanced partition does not fit: the first stage, or the last, may do with fewer layers.
                    let counts = self.evaluator.partition(&layout);
                    for moved in counts.map_or_else(|_| Vec::new(), |counts| lighter_ends(&counts)) {
                        self.bound(&with_partition(&layout, moved), shape, passes)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Bounds the costs of `layout`. Returns false if it does not fit the memory.
    fn bound(&mut self, layout: &Layout, shape: PipelineShape, passes: &[Vec<ScheduledPass>]) -> Result<bool> {
        let bounds = self.evaluator.bounds(layout, shape, passes);
        self.layouts += 1;
        self.report();
        match bounds {
            Ok(costs) => self.fit.push(Candidate { layout: layout.clone(), shape, costs }),
            Err(unfit) => return self.exclude(layout, unfit),
        }
        Ok(true)
    }

    /// The number of layouts that fit the memory and can be planned.
    fn fit_count(&self) -> usize {
        self.layouts - self.too_large - self.refused.values().sum::<usize>()
    }

    /// Counts a layout that is left out. Returns false if it does not fit the memory.
    fn exclude(&mut self, layout: &Layout, unfit: Unfit) -> Result<bool> {
        match unfit {
            Unfit::Memory(lacking) => {
                self.too_large += 1;
                if self.closest.as_ref().is_none_or(|(least, _)| lacking < *least) {
                    self.closest = Some((lacking, layout.clone()));
                }
                Ok(false)
            }
            Unfit::Refused(why) => {
                *self.refused.entry(why).or_default() += 1;
                Ok(true)
            }
            Unfit::UnknownSpeed(device) => Err(unknown_speed(&device)),
        }
    }

    /// Simulates layouts in the order of their least times, until no other can be among the fastest or on the front; then those with other
    /// partitions than the best pipelines. Returns them, the fastest first.
    fn simulate_best(&mut self) -> Result<Vec<Candidate>> {
        let mut bounded = std::mem::take(&mut self.fit);
        bounded.sort_by(Candidate::order);
        let mut simulated: Vec<Candidate> = Vec::new();
        let mut on_front: Vec<LayoutCosts> = Vec::new();
        for candidate in bounded {
            let slowest = simulated.get(BEST - 1).map_or(f64::INFINITY, |last| last.costs.seconds);
            let is_beaten =
                candidate.costs.seconds > slowest && on_front.iter().any(|other| stands_for(other, &candidate.costs));
            if !is_beaten && let Some(costs) = self.simulate(&candidate)? {
                insert(&mut simulated, Candidate { costs, ..candidate });
                on_front = front(&simulated).into_iter().map(|candidate| candidate.costs).collect();
            }
        }
        for _ in 0..PARTITION_ROUNDS {
            let pipelines = simulated.iter().take(BEST).filter(|candidate| candidate.shape.stages > 1);
            let mut moved = Vec::new();
            for (layout, shape) in pipelines.map(|best| (best.layout.clone(), best.shape)).collect::<Vec<_>>() {
                let passes = shape.passes(&layout, self.sequences);
                let Ok(counts) = self.evaluator.partition(&layout) else { continue };
                let mut balanced = layout.clone();
                if let Some(pipeline) = &mut balanced.parallel.pipeline {
                    pipeline.partition = AutoOr::Auto;
                }
                let balanced = self.evaluator.partition(&balanced).unwrap_or_else(|_| Vec::new());
                for counts in lighter_ends(&counts).into_iter().filter(|counts| *counts != balanced) {
                    let layout = with_partition(&layout, counts);
                    if simulated.iter().chain(&moved).all(|known: &Candidate| known.layout != layout)
                        && self.bound(&layout, shape, &passes)?
                        && let Some(candidate) = self.fit.pop()
                        && let Some(costs) = self.simulate(&candidate)?
                    {
                        moved.push(Candidate { costs, ..candidate });
                    }
                }
            }
            let best = simulated.first().map_or(f64::INFINITY, |best| best.costs.seconds);
            let is_better = moved.iter().any(|candidate| candidate.costs.seconds < best);
            for candidate in moved {
                insert(&mut simulated, candidate);
            }
            if !is_better {
                break;
            }
        }
        Ok(simulated)
    }

    /// The costs of `candidate` with its simulated time; `None` if it does not fit after all, which is then counted.
    fn simulate(&mut self, candidate: &Candidate) -> Result<Option<LayoutCosts>> {
        let passes = candidate.shape.passes(&candidate.layout, self.sequences);
        self.simulations += 1;
        self.report();
        match self.evaluator.simulated(&candidate.layout, &passes, candidate.costs) {
            Ok(costs) => Ok(Some(costs)),
            Err(unfit) => self.exclude(&candidate.layout, unfit).map(|_| None),
        }
    }

    /// Why layouts fell out before they were ranked.
    fn exclusions(&self, max_ranks: usize) -> Vec<Exclusion> {
        let mut out = Vec::new();
        let indivisible: Vec<usize> = (1..=max_ranks).filter(|n| !self.sequences.is_multiple_of(*n)).collect();
        if !indivisible.is_empty() && self.only_ranks.is_none() {
            let numbers: Vec<String> = indivisible.iter().map(usize::to_string).collect();
            let sequences = count(self.sequences as u64);
            let reason = format!("replicas that do not divide batch.sequences {sequences}: {}", list_start(&numbers));
            out.push(Exclusion { count: indivisible.len(), reason });
        }
        if max_ranks > self.layers {
            let reason = format!("stages above the model's {}", counted(self.layers as u64, "layer"));
            out.push(Exclusion { count: max_ranks - self.layers, reason });
        }
        if let Some((lacking, layout)) = &self.closest {
            let Layout { micro_batch, recompute, .. } = layout;
            let reason = format!(
                "{} too large for the memory; the closest lacks {}: {}, micro-batches of {micro_batch}, recompute {}",
                counted(self.too_large as u64, "layout"),
                bytes(*lacking),
                layout.describe(),
                choice_name(recompute)
            );
            out.push(Exclusion { count: self.too_large, reason });
        }
        out.extend(self.refused.iter().map(|(why, count)| {
            let reason = format!("{}: {why}", counted(*count as u64, "layout"));
            Exclusion { count: *count, reason }
        }));
        out
    }
}

fn with_partition(layout: &Layout, counts: Vec<usize>) -> Layout {
    let mut layout = layout.clone();
    if let Some(pipeline) = &mut layout.parallel.pipeline {
        pipeline.partition = AutoOr::Given(counts);
    }
    layout
}

/// `counts` with a layer less on the first part, or on the last, which one of the parts with the fewest layers gets.
fn lighter_ends(counts: &[usize]) -> Vec<Vec<usize>> {
    let last = counts.len() - 1;
    let lighter = |end: usize| {
        let taker =
            (0..counts.len()).filter(|part| *part != end).min_by_key(|part| (counts[*part], *part == 0, *part))?;
        let mut counts = counts.to_vec();
        counts[end] = counts[end].checked_sub(1).filter(|left| *left > 0)?;
        counts[taker] += 1;
        Some(counts)
    };
    [0, last].into_iter().filter_map(lighter).collect()
}

/// The first of `numbers`, as in `3, 5, 6, …`.
fn list_start(numbers: &[String]) -> String {
    const SHOWN: usize = 6;
    let more = if numbers.len() > SHOWN { ", …" } else { "" };
    format!("{}{more}", numbers[..numbers.len().min(SHOWN)].join(", "))
}

/// The divisors of `n`, ascending.
fn divisors(n: usize) -> Vec<usize> {
    let small = (1..).take_while(|d| d * d <= n).filter(|d| n.is_multiple_of(*d));
    let mut all: Vec<usize> = small.flat_map(|d| [d, n / d]).collect();
    all.sort_unstable();
    all.dedup();
    all
}
