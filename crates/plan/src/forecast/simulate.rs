//! Runs one replica of each stage against the others in time: which rank computes, which one waits, and for how long.
//!
//! A rank does its instructions in order. A message arrives after the link's latency and its bytes' time, one after the
//! other; a send waits for a free slot. What a rank starts runs beside the computation, one after the other, and `WaitBuckets` waits
//! for it. Replicas do the same at the same time, so one of each stage stands for all; a collective over them starts when
//! that one does, and costs what its group's size makes it cost.

use std::collections::HashMap;
use std::convert::Infallible;

use crate::schedule::interleaving::interleave_steps;
use runner_spec::forecast::{Activity, ForecastSpan};
use runner_spec::program::{Instruction, Program};
use runner_spec::topology::Lane;

/// What flows of micro-batch `mb` into `block` of the block list, or its gradient.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub mb: usize,
    pub block: usize,
}

/// The times from which a step is simulated.
pub(crate) trait StepCosts {
    /// Seconds that `stage` computes for `instruction`.
    fn compute(&self, stage: usize, program: &Program, instruction: &Instruction) -> f64;
    /// A micro-batch's activations, or their gradients, from stage `from` to stage `to`.
    fn message(&self, from: usize, to: usize, program: &Program, of: Message) -> Transfer;
    /// True if the replicas of a stage copy what they exchange themselves, and cannot compute meanwhile.
    fn replicas_copy(&self, _stage: usize) -> bool {
        false
    }
    /// Seconds of a collective once all its members are there.
    fn collective(&self, stage: usize, program: &Program, instruction: &Instruction) -> f64;
}

/// One message: seconds until its first byte is there, seconds for its bytes, and whether both ends copy them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Transfer {
    pub(crate) latency: f64,
    pub(crate) seconds: f64,
    pub(crate) copied_by_ranks: bool,
}

/// The result of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SimulatedStep {
    /// The time from the first instruction to the end of the last rank.
    pub(crate) seconds: f64,
    pub(crate) stages: Vec<StageSeconds>,
    /// Spans in the order of stages, and for each stage in the order of time.
    pub(crate) spans: Vec<ForecastSpan>,
}

/// The times of one stage in seconds, which add up to the step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct StageSeconds {
    pub(crate) compute: f64,
    /// For other stages.
    pub(crate) waiting: f64,
    pub(crate) communication: f64,
}

/// Messages of one channel: when each can be received, and how long it was under way; when each was received.
#[derive(Debug, Default)]
struct SimulatedChannel {
    sent: Vec<(f64, f64)>,
    received: Vec<f64>,
    /// The time until which the link is busy.
    busy_until: f64,
}

#[derive(Debug, Default)]
struct SimulatedRank {
    clock: f64,
    seconds: StageSeconds,
    spans: Vec<ForecastSpan>,
    /// The end of the last collective that was started. They run beside the computation, unless the ranks copy the bytes themselves.
    started_until: f64,
    /// The time at which a bucket's weights are there that are on their way.
    prefetched: HashMap<usize, f64>,
    /// Collectives that the rank has completed, by group.
    completed: [usize; 2],
    joined: bool,
}

/// Arrivals at the n-th collective of a group: how many, the latest, and the longest that a member takes for it.
#[derive(Debug, Clone, Copy, Default)]
struct CollectiveArrivals {
    arrived: usize,
    latest: f64,
    cost: f64,
}

struct Simulation<'a, P> {
    programs: &'a [&'a Program],
    slots: usize,
    costs: &'a P,
    ranks: Vec<SimulatedRank>,
    channels: HashMap<(usize, usize, Lane), SimulatedChannel>,
    /// The collectives of each group, in order.
    collectives: [Vec<CollectiveArrivals>; 2],
}

/// The groups of collectives: all ranks, and the two that hold the tied embedding.
const WORLD: usize = 0;
const TIED: usize = 1;

/// Simulates one step of `programs`, the first replica of each stage in order, with channels of `slots` messages. `None`
/// if they wait in a circle, which checked programs never do.
pub(crate) fn simulate<P: StepCosts>(programs: &[&Program], slots: usize, costs: &P) -> Option<SimulatedStep> {
    let mut simulation = Simulation {
        programs,
        slots: slots.max(1),
        costs,
        ranks: programs.iter().map(|_| SimulatedRank::default()).collect(),
        channels: HashMap::new(),
        collectives: [Vec::new(), Vec::new()],
    };
    let stopped = interleave_steps(programs, |stage, index| {
        let has_run = simulation.step(stage, programs[stage].step[index]);
        Ok::<_, Infallible>((!has_run).then_some(()))
    });
    if stopped.is_ok_and(|stopped| !stopped.blocked.is_empty()) {
        return None;
    }
    let seconds = simulation.ranks.iter().map(|r| r.clock).fold(0.0, f64::max);
    let mut trace = SimulatedStep { seconds, stages: Vec::new(), spans: Vec::new() };
    for rank in simulation.ranks {
        let waiting = rank.seconds.waiting + (seconds - rank.clock);
        trace.stages.push(StageSeconds { waiting, ..rank.seconds });
        trace.spans.extend(rank.spans);
    }
    Some(trace)
}

impl<P: StepCosts> Simulation<'_, P> {
    /// Executes `instruction` on `stage`. Returns false if it has to wait.
    fn step(&mut self, stage: usize, instruction: Instruction) -> bool {
        let program = self.programs[stage];
        match instruction {
            Instruction::SendActivation { mb, chunk, to } => self.send(stage, to, Lane::Activation, (mb, chunk)),
            Instruction::SendGradient { mb, chunk, to } => self.send(stage, to, Lane::Gradient, (mb, chunk)),
            Instruction::RecvActivation { mb, chunk, from } => self.receive(stage, from, Lane::Activation, (mb, chunk)),
            Instruction::RecvGradient { mb, chunk, from } => self.receive(stage, from, Lane::Gradient, (mb, chunk)),
            Instruction::AllReduce { .. }
            | Instruction::ReduceScatter { .. }
            | Instruction::PrefetchParameters { .. } => {
                let cost = self.costs.collective(stage, program, &instruction);
                let replicas_copy = self.costs.replicas_copy(stage);
                let rank = &mut self.ranks[stage];
                let start = rank.start_beside(cost, replicas_copy);
                if let Instruction::PrefetchParameters { bucket } = instruction {
                    rank.prefetched.insert(bucket, rank.started_until);
                } else {
                    rank.span(stage, start, rank.started_until, Activity::Reduce, None, 0);
                }
                true
            }
            Instruction::WaitBuckets => {
                let until = self.ranks[stage].started_until;
                self.ranks[stage].wait_for_communication(until);
                true
            }
            // Its members are replicas, for which one rank stands.
            Instruction::GatherParameters { bucket } => {
                if let Some(until) = self.ranks[stage].prefetched.remove(&bucket) {
                    self.ranks[stage].wait_for_communication(until);
                    return true;
                }
                let cost = self.costs.collective(stage, program, &instruction);
                let rank = &mut self.ranks[stage];
                let start = rank.clock;
                rank.clock += cost;
                rank.seconds.communication += cost;
                rank.span(stage, start, rank.clock, Activity::Collective, None, 0);
                true
            }
            Instruction::CountTokens { .. }
            | Instruction::ClipNorm { .. }
            | Instruction::BroadcastWeights
            | Instruction::ReduceToRoot { .. } => {
                // A rank measures its own norm before the sum over ranks.
                if matches!(instruction, Instruction::ClipNorm { .. }) && !self.ranks[stage].joined {
                    self.compute(stage, &instruction);
                }
                self.join_collective(stage, instruction, WORLD)
            }
            Instruction::SumTied => self.join_collective(stage, instruction, TIED),
            _ => {
                self.compute(stage, &instruction);
                true
            }
        }
    }

    fn compute(&mut self, stage: usize, instruction: &Instruction) {
        let seconds = self.costs.compute(stage, self.programs[stage], instruction);
        let rank = &mut self.ranks[stage];
        let (start, end) = (rank.clock, rank.clock + seconds);
        rank.clock = end;
        rank.seconds.compute += seconds;
        if let Some(activity) = instruction.activity() {
            rank.span(stage, start, end, activity, instruction.mb(), instruction.chunk().unwrap_or(0));
        }
    }

    fn send(&mut self, from: usize, to: usize, lane: Lane, (mb, chunk): (usize, usize)) -> bool {
        let message = Message { mb, block: self.programs[from].sent_at(chunk, lane) };
        let transfer = self.costs.message(from, to, self.programs[from], message);
        let slots = self.slots;
        let channel = self.channels.entry((from, to, lane)).or_default();
        let rank = &mut self.ranks[from];
        if let Some(earlier) = channel.sent.len().checked_sub(slots) {
            let Some(&free) = channel.received.get(earlier) else { return false };
            let wait = (free - rank.clock).max(0.0);
            rank.seconds.waiting += wait;
            rank.clock += wait;
        }
        let start = rank.clock.max(channel.busy_until);
        channel.busy_until = start + transfer.seconds;
        channel.sent.push((channel.busy_until + transfer.latency, transfer.seconds + transfer.latency));
        if transfer.copied_by_ranks {
            rank.seconds.communication += channel.busy_until - rank.clock;
            rank.clock = channel.busy_until;
        }
        true
    }

    fn receive(&mut self, stage: usize, from: usize, lane: Lane, (mb, chunk): (usize, usize)) -> bool {
        let message = Message { mb, block: self.programs[stage].received_at(chunk, lane) };
        let transfer = self.costs.message(from, stage, self.programs[from], message);
        let channel = self.channels.entry((from, stage, lane)).or_default();
        let Some(&(arrival, under_way)) = channel.sent.get(channel.received.len()) else { return false };
        let rank = &mut self.ranks[stage];
        let wait = (arrival - rank.clock).max(0.0);
        // The time that the bytes were under way is communication, the rest of the wait is waiting for the other stage.
        let communication = wait.min(under_way);
        rank.seconds.communication += communication;
        rank.seconds.waiting += wait - communication;
        rank.clock += wait;
        if transfer.copied_by_ranks {
            rank.seconds.communication += transfer.seconds;
            rank.clock += transfer.seconds;
        }
        channel.received.push(rank.clock);
        true
    }

    /// Executes a collective of `group`. Returns true once all members have joined it.
    fn join_collective(&mut self, stage: usize, instruction: Instruction, group: usize) -> bool {
        let members = if group == WORLD { self.programs.len() } else { 2.min(self.programs.len()) };
        let rank = &mut self.ranks[stage];
        let (collectives, nth) = (&mut self.collectives[group], rank.completed[group]);
        if collectives.len() <= nth {
            collectives.resize(nth + 1, CollectiveArrivals::default());
        }
        let arrivals = &mut collectives[nth];
        if !rank.joined {
            let cost = self.costs.collective(stage, self.programs[stage], &instruction);
            arrivals.arrived += 1;
            arrivals.latest = arrivals.latest.max(rank.clock);
            arrivals.cost = arrivals.cost.max(cost);
            rank.joined = true;
        }
        if arrivals.arrived < members {
            return false;
        }
        rank.joined = false;
        rank.completed[group] += 1;
        let end = arrivals.latest + arrivals.cost;
        rank.seconds.waiting += arrivals.latest - rank.clock;
        rank.seconds.communication += arrivals.cost;
        rank.span(stage, arrivals.latest, end, Activity::Collective, None, 0);
        rank.clock = end;
        true
    }
}

impl SimulatedRank {
    /// Starts a collective of `cost` seconds beside the computation, and returns when it begins. If the rank copies the bytes itself, it takes
    /// that time from the computation.
    fn start_beside(&mut self, cost: f64, replicas_copy: bool) -> f64 {
        let start = self.started_until.max(self.clock);
        self.started_until = start + cost;
        if replicas_copy {
            self.wait_for_communication(self.started_until);
        }
        start
    }

    fn wait_for_communication(&mut self, until: f64) {
        let wait = (until - self.clock).max(0.0);
        self.seconds.communication += wait;
        self.clock += wait;
    }

    fn span(&mut self, stage: usize, start: f64, end: f64, what: Activity, mb: Option<usize>, chunk: usize) {
        if end <= start {
            return;
        }
        // The parts of a backward that ends in several buckets are one.
        if let Some(last) = self.spans.iter_mut().rev().find(|s| s.what != Activity::Reduce)
            && (last.what, last.mb, last.chunk, last.end) == (what, mb, chunk, start)
        {
            last.end = end;
            return;
        }
        self.spans.push(ForecastSpan { stage, start, end, what, mb, chunk });
    }
}

/// The costs that the literature on pipelines counts: a forward and each half of a backward take one unit per chunk, and nothing else
/// takes time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnitCosts;

impl StepCosts for UnitCosts {
    fn compute(&self, _: usize, program: &Program, instruction: &Instruction) -> f64 {
        let share = |chunk: usize, blocks: Option<runner_spec::program::BlockRange>| {
            blocks.map_or(1.0, |b| {
                let whole = program.chunks[chunk];
                (b.end - b.start) as f64 / (whole.end - whole.start) as f64
            })
        };
        match *instruction {
            Instruction::BackwardInput { .. } => 1.0,
            Instruction::Backward { chunk, blocks, .. } => 2.0 * share(chunk, blocks),
            Instruction::Forward { chunk, blocks, .. } | Instruction::BackwardWeight { chunk, blocks, .. } => {
                share(chunk, blocks)
            }
            _ => 0.0,
        }
    }

    fn message(&self, _: usize, _: usize, _: &Program, _: Message) -> Transfer {
        Transfer::default()
    }

    fn collective(&self, _: usize, _: &Program, _: &Instruction) -> f64 {
        0.0
    }
}
