//! The interpreter: one rank executes its Program, instruction by instruction.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::cells::Cells;
use super::clock::{Clock, Phase};
use super::error::ExecError;
use super::peers::{Links, List, Peers};
use super::shortage::explained;
use super::step::Trainer;
use super::trace::Trace;
use super::watch::Stopwatch;
use super::{device, diagnose, equal};
use runner_compute::kernels::optimizer::Sum;
use runner_compute::observer::Observer;
use runner_compute::optim;
use runner_compute::state::TrainState;
use runner_data::{Dataset, Sampler, TextTokenizer};
use runner_spec::data::{ChoiceItem, Rows};
use runner_spec::event::{Event, StepMetrics};
use runner_spec::program::{Instruction, Mode, Program};

/// What a rank works with besides its program.
#[derive(Debug, Clone, Copy)]
pub struct Resources<'a> {
    pub dataset: &'a Dataset,
    pub tokenizer: &'a TextTokenizer,
    /// Items of the multiple-choice evaluation, where there is one.
    pub choice: Option<&'a [ChoiceItem]>,
}

/// What a rank is told besides its program: the same on all ranks.
#[derive(Debug, Clone, Copy)]
pub struct Orders<'a> {
    /// Set when the run is asked to stop.
    pub stop: &'a AtomicBool,
    /// The step, counting from 1, after which to stop.
    pub until: Option<u64>,
    /// Whether to tell the hashes of what is computed.
    pub trace: bool,
}

impl<'a> From<&'a AtomicBool> for Orders<'a> {
    fn from(stop: &'a AtomicBool) -> Self {
        Self { stop, until: None, trace: false }
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    pub state: TrainState,
    /// Stopped on request or where it was to stop, before its last step.
    pub interrupted: bool,
}

/// Runs `program` from `state` on, to its end or until it is to stop. What happens goes to `observer`.
///
/// # Errors
/// A number that is not finite, data that cannot be read, memory, the other ranks, or the observer's own.
pub fn run<'a>(
    program: &Program,
    resources: &Resources,
    peers: Peers<'_>,
    state: TrainState,
    orders: impl Into<Orders<'a>>,
    observer: &mut dyn Observer,
) -> Result<Outcome, ExecError> {
    if (peers.comm.rank(), peers.comm.world_size()) != (program.rank, program.world_size()) {
        return Err(ExecError::Program(format!(
            "it is rank {} of {}, and speaks as rank {} of {}",
            program.rank,
            program.world_size(),
            peers.comm.rank(),
            peers.comm.world_size()
        )));
    }
    let state_step = state.step;
    let starting = |e| explained(e, program, state_step, None, || device::room_of(program));
    let trainer = Trainer::new(program, state).map_err(starting)?;
    peers.comm.attach(trainer.device()).map_err(|e| starting(e.into()))?;
    let clock = Clock::new(trainer.device())?;
    let (stage, replica) = program.mesh.place(program.rank);
    let orders = orders.into();
    let rank = Rank {
        program,
        resources,
        monitor: peers.monitor,
        links: Links { comm: peers.comm, mesh: program.mesh, stage, replica },
        sampler: sampler(program, resources.dataset.train().rows()),
        trainer,
        observer,
        orders,
        trace: (orders.trace && replica == 0).then(Trace::default),
        step: Step::default(),
        clock,
        waited: Duration::ZERO,
        begun: state_step,
        at: 0,
        ahead: HashMap::new(),
    };
    rank.go()
}

/// The order of the training rows.
fn sampler(program: &Program, rows: u64) -> Sampler {
    let order = program.batch.order;
    let used = order.used(rows, program.batch.sequences);
    if order.sequential { Sampler::sequential(used) } else { Sampler::new(program.seed, rows).of(used) }
}

/// What one optimizer step adds up.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub cells: Cells,
    /// Valid tokens of this rank's rows, and of the global batch.
    pub own_tokens: u64,
    pub tokens: u64,
    /// Summed negative log-likelihood: of this rank, and of all.
    pub loss: f64,
    pub total_loss: f64,
    pub grad_norm: f64,
    pub grad_scale: f64,
    pub lr: f64,
    pub stopping: bool,
    /// Mean over ranks of the time spent in communication.
    pub comm: Duration,
}

pub(super) struct Rank<'a> {
    pub program: &'a Program,
    pub resources: &'a Resources<'a>,
    pub links: Links<'a>,
    pub monitor: &'a dyn super::peers::Monitor,
    pub trainer: Trainer,
    pub sampler: Sampler,
    pub observer: &'a mut dyn Observer,
    orders: Orders<'a>,
    pub trace: Option<Trace>,
    pub step: Step,
    clock: Clock,
    /// What the communicator had waited when the last step was measured.
    waited: Duration,
    /// The step at which this process began.
    begun: u64,
    /// The current step, from 0.
    pub at: u64,
    /// Rows that were read before they are wanted, by step and micro-batch.
    pub ahead: HashMap<(u64, usize), Rows>,
}

impl Rank<'_> {
    fn go(mut self) -> Result<Outcome, ExecError> {
        equal::states(&self.links, self.program, &self.trainer)?;
        self.observer.observe(&Event::Start { step: self.trainer.state.step, steps: self.program.steps })?;
        if self.trainer.state.step == 0 {
            for (index, instruction) in self.program.start.iter().enumerate() {
                self.monitor.at(0, List::Start, index);
                self.execute(*instruction)?;
            }
        }
        self.waited = self.links.comm.waited();
        // Before the first step there is nothing to save.
        let early = self.trainer.state.step == 0 && self.asked_to_stop() && self.links.mesh.world_size() == 1;
        let mut interrupted = early || self.at_its_stop();
        while self.trainer.state.step < self.program.steps && !interrupted {
            interrupted = self.one_step()?;
        }
        Ok(Outcome { state: self.trainer.state.on_host()?, interrupted })
    }

    pub(super) fn asked_to_stop(&self) -> bool {
        self.orders.stop.load(Ordering::Relaxed)
    }

    /// Whether the step after which all ranks stop is done, and not the last.
    fn at_its_stop(&self) -> bool {
        let done = self.trainer.state.step;
        done < self.program.steps && self.orders.until.is_some_and(|until| until <= done)
    }

    /// The step's instructions, then the periodic ones that are due. Returns whether to stop.
    fn one_step(&mut self) -> Result<bool, ExecError> {
        let started = Instant::now();
        self.at = self.trainer.state.step;
        self.step = Step {
            grad_scale: 1.0,
            cells: Cells::new(self.program.chunks.len(), self.program.batch.micro_batches()),
            ..Step::default()
        };
        let mut stopwatch = Stopwatch::for_step(self.at - self.begun + 1, self.program, self.trainer.device());
        for (index, instruction) in self.program.step.iter().enumerate() {
            self.monitor.at(self.at, List::Step, index);
            let begun = Instant::now();
            self.execute(*instruction)?;
            if let Some(watch) = &mut stopwatch {
                // A span ends when its work is done, not when it is launched.
                self.trainer.synchronize()?;
                watch.note(self.program.rank, instruction, begun);
            }
        }
        let elapsed = started.elapsed();
        if let Some(trace) = &mut self.trace {
            let lines = trace.finish(&self.trainer)?;
            self.observer.trace(&lines)?;
        }
        self.report(elapsed)?;
        // Alone, a request counts at any moment; together, as of the beginning of the step, where all heard of it.
        let alone = self.links.mesh.world_size() == 1;
        let done = self.trainer.state.step;
        let unfinished = done < self.program.steps;
        let asked = self.step.stopping || (alone && self.asked_to_stop());
        let mut stopping = unfinished && (asked || self.at_its_stop());
        let mut saved = false;
        let waited = self.links.comm.waited();
        if let Some(mut watch) = stopwatch {
            watch.weigh(self.program, &self.trainer);
            if let Some(watched) = watch.gather(&self.links, done)? {
                self.observer.observe(&Event::Watched(watched))?;
            }
        }
        for (index, p) in self.program.periodic.iter().enumerate() {
            if p.due(done, self.program.steps) {
                self.monitor.at(self.at, List::Periodic, index);
                self.execute(p.instruction)?;
                saved |= p.instruction == Instruction::Checkpoint;
            }
        }
        // A request to stop may come during a long evaluation; what counts is whether the state is saved.
        stopping |= unfinished && alone && self.asked_to_stop();
        if stopping && !saved {
            self.monitor.at(self.at, List::Periodic, self.program.periodic.len());
            self.execute(Instruction::Checkpoint)?;
        }
        // The next step's communication is its own.
        self.waited += self.links.comm.waited().saturating_sub(waited);
        Ok(stopping)
    }

    fn execute(&mut self, instruction: Instruction) -> Result<(), ExecError> {
        let done = self.execute_one(instruction);
        let room = || device::room(self.trainer.device());
        done.map_err(|e| explained(e, self.program, self.at, Some(instruction), room))
    }

    fn execute_one(&mut self, instruction: Instruction) -> Result<(), ExecError> {
        let lap = self.clock.start()?;
        match instruction {
            Instruction::Load { mb } => {
                self.load(mb)?;
                self.clock.stop(lap, Phase::Data)?;
            }
            Instruction::CountTokens { numerator } => self.count_tokens(numerator)?,
            Instruction::BroadcastWeights => self.broadcast_weights()?,
            Instruction::Forward { mb, chunk } => {
                self.forward(mb, chunk)?;
                self.clock.stop(lap, Phase::Forward)?;
            }
            Instruction::Backward { mb, chunk, blocks } => {
                self.backward(mb, chunk, blocks)?;
                self.clock.stop(lap, Phase::Backward)?;
            }
            Instruction::BackwardInput { mb, chunk } => {
                self.backward_input(mb, chunk)?;
                self.clock.stop(lap, Phase::Backward)?;
            }
            Instruction::BackwardWeight { mb, chunk, blocks } => {
                self.backward_weight(mb, chunk, blocks)?;
                self.clock.stop(lap, Phase::Backward)?;
            }
            Instruction::SendActivation { mb, chunk, to } => self.send_activation(mb, chunk, to)?,
            Instruction::RecvActivation { mb, chunk, from } => self.receive_activation(mb, chunk, from)?,
            Instruction::SendGradient { mb, chunk, to } => self.send_gradient(mb, chunk, to)?,
            Instruction::RecvGradient { mb, chunk, from } => self.receive_gradient(mb, chunk, from)?,
            Instruction::AllReduce { bucket } => self.all_reduce(bucket)?,
            Instruction::WaitBuckets => self.wait_buckets()?,
            Instruction::ReduceToRoot { bucket } => self.reduce_to_root(bucket)?,
            Instruction::SumTied => self.sum_tied()?,
            Instruction::ClipNorm { max } => {
                self.clip(max)?;
                self.clock.stop(lap, Phase::Optimizer)?;
            }
            Instruction::OptimizerStep => {
                self.trainer.update(self.step.lr, self.step.grad_scale)?;
                self.trainer.state.tokens += self.step.tokens;
                self.clock.stop(lap, Phase::Optimizer)?;
            }
            Instruction::ZeroGradients => {
                self.trainer.end_step()?;
                self.trainer.state.tokens += self.step.tokens;
            }
            Instruction::Evaluate => self.evaluate()?,
            Instruction::Sample => self.sample()?,
            Instruction::Checkpoint => {
                if let Some(first) = diagnose::weights(&self.trainer)? {
                    self.still_running()?;
                    return Err(ExecError::NotFinite { step: self.trainer.state.step, what: "update", first });
                }
                equal::states(&self.links, self.program, &self.trainer)?;
                self.observer.checkpoint(&self.trainer.state.on_host()?)?;
            }
        }
        Ok(())
    }

    /// Measures the norm over all ranks, and adds up what all ranks report of the step.
    fn clip(&mut self, max: Option<f64>) -> Result<(), ExecError> {
        // Of replicas one counts: under ddp all have the same gradients, under dp the root has them.
        let counts = self.links.replica == 0;
        self.trainer.finish_gradients()?;
        if let Some(trace) = &mut self.trace {
            trace.gradients(&self.trainer)?;
        }
        // Here a step waits for a GPU, once: what is read is launched before, and the time used.
        let squares = self.trainer.grad_squares_there()?;
        self.read_ahead();
        self.read_losses()?;
        let mine = squares.into_iter().map(Sum::read).sum::<candle_core::Result<f64>>()?;
        let waited = self.links.comm.waited();
        let spent = waited.saturating_sub(self.waited).as_secs_f64();
        self.waited = waited;
        let all = self.links.gather_numbers(&[if counts { mine } else { 0.0 }, self.step.loss, spent])?;
        let column = |i: usize| all.iter().map(|row| row[i]).sum::<f64>();
        let norm = column(0).sqrt();
        if !norm.is_finite() {
            self.still_running()?;
            let bad = if counts && !mine.is_finite() { diagnose::gradients(&self.trainer)? } else { String::new() };
            let first = self.links.first_found(&bad, "the sum of squared gradients overflows")?;
            return Err(ExecError::NotFinite { step: self.at + 1, what: "gradient norm", first });
        }
        self.step.total_loss = column(1);
        self.step.comm = Duration::from_secs_f64(column(2) / all.len() as f64);
        self.step.grad_norm = norm;
        self.step.grad_scale = optim::clip_scale(norm, max);
        self.step.lr = optim::lr::lr_at(&self.program.schedule, self.at);
        Ok(())
    }

    fn report(&mut self, elapsed: Duration) -> Result<(), ExecError> {
        let phases = self.clock.take()?;
        let s = &self.step;
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        let seconds = elapsed.as_secs_f64();
        let event = Event::Step(StepMetrics {
            step: self.trainer.state.step,
            loss: s.total_loss / s.tokens.max(1) as f64,
            lr: s.lr,
            grad_norm: s.grad_norm,
            tokens: s.tokens,
            tokens_per_second: s.tokens as f64 / seconds,
            mfu: self.program.peak_flops.map(|peak| self.program.flops_per_step / (peak * seconds)),
            step_ms: ms(elapsed),
            data_ms: ms(phases.data),
            forward_ms: ms(phases.forward),
            backward_ms: ms(phases.backward),
            optimizer_ms: ms(phases.optimizer),
            comm_ms: (self.links.mesh.world_size() > 1).then(|| ms(s.comm)),
        });
        Ok(self.observer.observe(&event)?)
    }

    /// dp: everyone gets the root's weights.
    fn broadcast_weights(&mut self) -> Result<(), ExecError> {
        if self.program.mesh.mode != Mode::Dp {
            return Err(ExecError::Program("weights are broadcast under dp only".to_owned()));
        }
        self.links.comm.broadcast(self.links.replicas(), 0, &self.trainer.state.weights()?)?;
        Ok(self.trainer.refresh()?)
    }
}
