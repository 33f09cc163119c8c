//! The interpreter: one rank executes its Program, instruction by instruction.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::data_cursor::{DataCursor, Resources};
use super::error::{ExecError, explain_out_of_memory};
use super::gradient_reduction::GradientReduction;
use super::passes::Passes;
use super::phase_clock::{Phase, PhaseClock};
use super::rank_context::{InstructionList, ProgressMonitor, RankContext};
use super::step_exchange::{StepAgreement, StepTotals};
use super::step_watch::StepWatch;
use super::trace::Trace;
use super::trainer::Trainer;
use super::weight_exchange::{self, WeightExchange};
use super::{
    device, gradient_norm, gradient_reduction, layout_evaluation, layout_sampling, non_finite, rehearsal, replica_check,
};
use crate::observer::Observer;
use runner_comm::Communicator;
use runner_compute::kernels::optimizer::DeviceSum;
use runner_compute::optim;
use runner_compute::state::TrainState;
use runner_spec::event::{BestValidation, Event, StepMetrics};
use runner_spec::program::{Instruction, Program};
use runner_spec::topology::Lane;
use runner_threads::stop::StopSwitch;

/// Says whether a run is asked to stop. It stays so until the run has stopped.
pub trait StopRequest: Sync + fmt::Debug {
    fn is_stop_requested(&self) -> bool;
}

impl StopRequest for AtomicBool {
    fn is_stop_requested(&self) -> bool {
        self.load(Ordering::Relaxed)
    }
}

impl StopRequest for StopSwitch {
    fn is_stop_requested(&self) -> bool {
        Self::is_stop_requested(self)
    }
}

/// Settings for an early stop and for the trace, the same on all ranks.
#[derive(Debug, Clone, Copy)]
pub struct RunControls<'a> {
    pub stop: &'a dyn StopRequest,
    /// The step, counting from 1, after which to stop.
    pub until: Option<u64>,
    /// True if hashes of all computed tensors are recorded.
    pub trace: bool,
}

impl<'a> From<&'a AtomicBool> for RunControls<'a> {
    fn from(stop: &'a AtomicBool) -> Self {
        Self { stop, until: None, trace: false }
    }
}

/// The end of a rank's work.
#[derive(Debug)]
pub struct TrainedRank {
    pub state: TrainState,
    /// True if the rank stopped before its last step, on request or at `RunControls::until`.
    pub interrupted: bool,
}

/// Runs `program` from `state` on, until it ends or is to stop. `comm` connects the rank to the others, `monitor` follows it, and `observer`
/// receives the events.
///
/// # Errors
/// A number that is not finite, unreadable data, too little memory, the end of another rank, or the observer's own error.
pub fn run<'a>(
    program: &Program,
    resources: &Resources,
    comm: &dyn Communicator,
    monitor: &dyn ProgressMonitor,
    state: TrainState,
    controls: impl Into<RunControls<'a>>,
    observer: &mut dyn Observer,
) -> Result<TrainedRank, ExecError> {
    let result = run_stages(program, resources, (comm, monitor), state, controls.into(), &mut *observer);
    let finished = observer.finish(result.is_ok());
    let TrainedRank { state, interrupted } = result?;
    finished?;
    Ok(TrainedRank { state: state.on_host()?, interrupted })
}

/// Runs the stages of `program` from `state` on. A new trainer has the tensors of each stage.
fn run_stages(
    program: &Program,
    resources: &Resources<'_>,
    (comm, monitor): (&dyn Communicator, &dyn ProgressMonitor),
    state: TrainState,
    controls: RunControls<'_>,
    observer: &mut dyn Observer,
) -> Result<TrainedRank, ExecError> {
    let first_step = state.step;
    let stages = program.stages();
    let mut trained = TrainedRank { state, interrupted: false };
    for (until, stage) in program.stage_ends().zip(&stages).skip(program.stage_of_step(first_step)) {
        let context = RankContext::new(stage, program, comm, monitor)?;
        let step = trained.state.step;
        let is_first = step == first_step;
        let explain = |e| explain_out_of_memory(e, stage, step, None, || device::memory_of_program(stage));
        if is_first {
            device::reserve(&stages[program.stage_of_step(first_step)..]).map_err(explain)?;
        }
        let mut trainer = Trainer::new(stage, trained.state).map_err(explain)?;
        let is_rehearsed = trainer.device.is_cuda() && stage.world_size() > 1;
        if is_rehearsed {
            rehearsal::run_passes(context, &mut trainer).map_err(explain)?;
        }
        if is_first {
            context.comm.attach(&trainer.device).map_err(|e| explain(e.into()))?;
        }
        if is_rehearsed && is_first {
            rehearsal::run_group_operations(context, &mut trainer).map_err(explain)?;
        }
        let mut interpreter = Interpreter {
            context,
            resources,
            controls,
            observer: &mut *observer,
            clock: PhaseClock::new(&trainer.device)?,
            // Replicas compute the same: a difference in a different replica shows in the gradients, which are sums over all.
            trace: (controls.trace && context.replica == 0).then(Trace::default),
            trainer,
            data: DataCursor::new(stage, &resources.dataset.train),
            passes: Passes::new(context, step),
            reduction: GradientReduction::new(context),
            exchange: WeightExchange::new(context),
            clip_scale: 1.0,
            agreement: StepAgreement::default(),
            totals: StepTotals::default(),
            waited: Duration::ZERO,
            first_step,
            step,
            until,
        };
        if is_first {
            interpreter.start()?;
        }
        let interrupted = interpreter.train()?;
        trained = TrainedRank { state: interpreter.trainer.state, interrupted };
        if interrupted {
            break;
        }
    }
    Ok(trained)
}

/// The parts of a rank's work, and the order in which its program uses them.
struct Interpreter<'a> {
    context: RankContext<'a>,
    resources: &'a Resources<'a>,
    controls: RunControls<'a>,
    observer: &'a mut dyn Observer,
    clock: PhaseClock,
    trace: Option<Trace>,
    trainer: Trainer,
    data: DataCursor<'a>,
    passes: Passes<'a>,
    reduction: GradientReduction<'a>,
    exchange: WeightExchange<'a>,
    /// The factor by which the next update scales the gradients.
    clip_scale: f64,
    agreement: StepAgreement,
    totals: StepTotals,
    /// The part of the communicator's waiting time that is already reported, or belongs to no step.
    waited: Duration,
    /// The step at which this process began, from 0.
    first_step: u64,
    /// The current step, from 0.
    step: u64,
    /// The step, counting from 1, with which the stage ends.
    until: u64,
}

impl Interpreter<'_> {
    /// Runs the instructions before the first step.
    fn start(&mut self) -> Result<(), ExecError> {
        let program = self.context.program;
        replica_check::compare_states(self.context, &self.trainer)?;
        self.observer.observe(&Event::Start { step: self.first_step, steps: program.steps })?;
        if self.first_step == 0 {
            for (index, instruction) in program.start.iter().enumerate() {
                self.execute(InstructionList::Start, index, *instruction)?;
            }
        }
        Ok(())
    }

    /// Trains until the stage ends or the run is to stop. Returns true if it stops before its end.
    fn train(&mut self) -> Result<bool, ExecError> {
        self.waited = self.context.comm.waited();
        // Before the first step there is no checkpoint to write.
        let mut interrupted = (self.step == 0 && self.is_stop_requested()) || self.has_reached_stop_step();
        while self.trainer.state.step < self.until && !interrupted {
            interrupted = self.run_step()?;
        }
        Ok(interrupted)
    }

    /// A rank that is alone obeys a request at once. Several ranks obey what they agreed on when the step began.
    fn is_stop_requested(&self) -> bool {
        if self.context.is_alone() { self.controls.stop.is_stop_requested() } else { self.agreement.stop_requested }
    }

    fn has_reached_stop_step(&self) -> bool {
        self.is_unfinished() && self.controls.until.is_some_and(|until| until <= self.trainer.state.step)
    }

    fn is_unfinished(&self) -> bool {
        self.trainer.state.step < self.context.program.steps
    }

    /// True if training stops after this step, before its end.
    fn is_stopping(&self) -> bool {
        self.is_unfinished() && (self.is_stop_requested() || self.has_reached_stop_step())
    }

    /// Runs the step's instructions, then the periodic ones that are due. Returns true if the run stops after this step.
    fn run_step(&mut self) -> Result<bool, ExecError> {
        let started = Instant::now();
        let program = self.context.program;
        self.step = self.trainer.state.step;
        self.passes = Passes::new(self.context, self.step);
        self.trainer.start_step();
        let mut watch = StepWatch::start_if_due(self.step - self.first_step + 1, program, &self.trainer.device);
        for (index, instruction) in program.step.iter().enumerate() {
            if matches!(instruction, Instruction::ClipNorm { .. }) && !self.trainer.device.is_cpu() {
                // Clipping is the first to wait for the GPU: until then the host reads the next step's rows.
                self.data.prefetch_step(self.step + 1, self.until);
            }
            let instruction_start = Instant::now();
            self.execute(InstructionList::Step, index, *instruction)?;
            if let Some(watch) = &mut watch {
                // A span ends when its work is done, not when it is launched.
                device::synchronize(&self.trainer.device)?;
                watch.record_span(program.rank, instruction, instruction_start);
            }
        }
        self.trainer.state.tokens += self.agreement.tokens;
        self.report_step(started.elapsed())?;
        let waited_in_step = self.context.comm.waited();
        if let Some(mut watch) = watch {
            watch.record_memory(program, &self.trainer);
            if let Some(watched) = watch.gather(self.context, self.trainer.state.step)? {
                self.observer.observe(&Event::Watched(watched))?;
            }
        }
        let stopping = self.run_periodic()?;
        // Communication between the steps counts to none of them.
        self.waited += self.context.comm.waited().saturating_sub(waited_in_step);
        Ok(stopping)
    }

    /// Runs the periodic instructions that are due. Returns true if the run stops here; there is a checkpoint then.
    fn run_periodic(&mut self) -> Result<bool, ExecError> {
        let program = self.context.program;
        let done = self.trainer.state.step;
        let mut has_checkpoint = false;
        for (index, periodic) in program.periodic.iter().enumerate() {
            if periodic.is_due(done, program.steps) {
                self.execute(InstructionList::Periodic, index, periodic.instruction)?;
                has_checkpoint |= periodic.instruction == Instruction::Checkpoint;
            }
        }
        let stopping = self.is_stopping();
        if stopping && !has_checkpoint {
            self.execute(InstructionList::Periodic, program.periodic.len(), Instruction::Checkpoint)?;
        }
        Ok(stopping)
    }

    fn execute(&mut self, list: InstructionList, index: usize, instruction: Instruction) -> Result<(), ExecError> {
        self.context.monitor.enter_instruction(self.step, list, index);
        if instruction == Instruction::OptimizerStep {
            self.observer.before_update();
        }
        let lap = self.clock.start()?;
        self.dispatch(instruction).map_err(|e| {
            let memory = || device::driver_memory(&self.trainer.device);
            explain_out_of_memory(e, self.context.program, self.step, Some(instruction), memory)
        })?;
        match Phase::of_instruction(instruction) {
            Some(phase) => Ok(self.clock.stop(lap, phase)?),
            None => Ok(()),
        }
    }

    fn dispatch(&mut self, instruction: Instruction) -> Result<(), ExecError> {
        self.trainer.hold_gradients_of(self.context.program, instruction)?;
        let trainer = &mut self.trainer;
        match instruction {
            Instruction::Load { mb } => {
                let rows = self.data.load_rows(self.step, mb)?;
                self.passes.add_rows(trainer, mb, rows)
            }
            Instruction::CountTokens { .. } => self.agree_on_step(),
            Instruction::BroadcastWeights => weight_exchange::broadcast_weights(self.context, trainer),
            Instruction::PrefetchParameters { bucket } => self.exchange.prefetch(trainer, bucket),
            Instruction::GatherParameters { bucket } => self.exchange.gather(trainer, bucket),
            Instruction::ReleaseParameters { bucket } => {
                trainer.release_weights(self.context.program.buckets[bucket]);
                Ok(())
            }
            Instruction::Forward { mb, chunk, blocks } => {
                self.passes.forward(trainer, mb, chunk, blocks, self.trace.as_mut())
            }
            Instruction::Backward { mb, chunk, blocks } => self.passes.backward(trainer, mb, chunk, blocks),
            Instruction::BackwardInput { mb, chunk } => self.passes.backward_input(trainer, mb, chunk),
            Instruction::BackwardWeight { mb, chunk, blocks } => {
                self.passes.backward_weight(trainer, mb, chunk, blocks)
            }
            Instruction::SendActivation { mb, chunk, to } => self.passes.send(mb, chunk, to, Lane::Activation),
            Instruction::SendGradient { mb, chunk, to } => self.passes.send(mb, chunk, to, Lane::Gradient),
            Instruction::RecvActivation { mb, chunk, from } => {
                self.passes.receive(trainer, (mb, chunk), from, Lane::Activation)
            }
            Instruction::RecvGradient { mb, chunk, from } => {
                self.passes.receive(trainer, (mb, chunk), from, Lane::Gradient)
            }
            Instruction::AllReduce { bucket } => self.reduction.all_reduce(trainer, bucket),
            Instruction::ReduceScatter { bucket } => self.reduction.reduce_scatter(trainer, bucket),
            Instruction::WaitBuckets => self.reduction.wait_buckets(trainer),
            Instruction::ReduceToRoot { bucket } => self.reduction.reduce_to_root(trainer, bucket),
            Instruction::SumTied => self.reduction.sum_tied(trainer),
            Instruction::ClipNorm { max } => self.clip_gradients(max),
            Instruction::OptimizerStep => Ok(self.trainer.update(self.learning_rate(), self.clip_scale)?),
            Instruction::ZeroGradients => Ok(self.trainer.end_step()?),
            Instruction::Evaluate => self.evaluate(),
            Instruction::Sample => self.sample(),
            Instruction::Checkpoint => self.checkpoint(),
        }
    }

    /// Agrees with all ranks on the valid tokens of the global batch, and on whether the run stops after this step.
    fn agree_on_step(&mut self) -> Result<(), ExecError> {
        let stop_requested = self.controls.stop.is_stop_requested();
        self.agreement = StepAgreement::reach(self.context, self.passes.valid_tokens(), stop_requested)?;
        self.passes.set_global_tokens(self.agreement.tokens);
        Ok(())
    }

    /// Measures the gradients' norm over all ranks, and settles how the update scales them.
    fn clip_gradients(&mut self, max_norm: Option<f64>) -> Result<(), ExecError> {
        if self.controls.trace {
            let gradients = gradient_reduction::gather_sums(self.context, &self.trainer)?;
            if let Some(trace) = &mut self.trace {
                trace.record_gradients(&gradients, self.trainer.state.step + 1)?;
            }
        }
        // All reads are launched before the first one waits for a GPU.
        let divided = self.trainer.shard_gradients.clone();
        let by_tasks = divided.as_ref().filter(|sums| sums.device().is_cpu());
        let squares = if by_tasks.is_some() { Vec::new() } else { self.trainer.launch_grad_squares()? };
        let loss = self.passes.read_loss(&self.trainer)?;
        let own = match by_tasks {
            Some(sums) => gradient_norm::sum_of_squares(self.context, sums)?,
            None => squares.into_iter().map(DeviceSum::read).sum::<candle_core::Result<f64>>()?,
        };
        // One replica counts: under ddp all have the same gradients, under dp the root has them. A GPU counts those of its shard.
        let counts = self.context.replica == 0 || (divided.is_some() && by_tasks.is_none());
        let waited = self.context.comm.waited();
        let communication = waited.saturating_sub(std::mem::replace(&mut self.waited, waited));
        self.totals = StepTotals::gather(self.context, if counts { own } else { 0.0 }, loss, communication)?;
        if !self.totals.grad_norm.is_finite() {
            self.context.ensure_run_continues()?;
            let has_gradients = counts || divided.is_some();
            let search = has_gradients && !own.is_finite();
            let finding = if search { non_finite::find_in_gradients(&self.trainer)? } else { None };
            let finding = finding.unwrap_or_default();
            let first = self.context.elect_fault_report(&finding, non_finite::SQUARES_OVERFLOW)?;
            return Err(ExecError::NotFinite { step: self.step + 1, what: "gradient norm", first });
        }
        self.clip_scale = optim::clip_scale(self.totals.grad_norm, max_norm);
        Ok(())
    }

    /// The learning rate of the current step.
    fn learning_rate(&self) -> f64 {
        self.context.program.schedule.rate(self.step)
    }

    fn evaluate(&mut self) -> Result<(), ExecError> {
        let (metrics, rows) = layout_evaluation::evaluate(self.context, &self.trainer, self.resources)?;
        let state = &mut self.trainer.state;
        // Before the first step there is nothing to keep as the best.
        if let Some(val_loss) = metrics.val_loss()
            && state.step > 0
            && state.best.is_none_or(|best| val_loss < best.val_loss)
        {
            state.best = Some(BestValidation { step: state.step, val_loss });
        }
        self.observer.observe(&Event::Eval(metrics))?;
        Ok(self.observer.observe(&Event::Rows(rows))?)
    }

    fn sample(&mut self) -> Result<(), ExecError> {
        for sample in layout_sampling::sample(self.context, &self.trainer, self.resources.tokenizer)? {
            self.observer.observe(&Event::Sample(sample))?;
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), ExecError> {
        if let Some(first) = non_finite::find_in_weights(&self.trainer)? {
            self.context.ensure_run_continues()?;
            return Err(ExecError::NotFinite { step: self.trainer.state.step, what: "update", first });
        }
        replica_check::compare_states(self.context, &self.trainer)?;
        let continues = self.is_unfinished() && !self.is_stopping();
        Ok(self.observer.checkpoint(&self.trainer.state, continues)?)
    }

    /// Emits the trace, where there is one, and the metrics of the step that is done.
    fn report_step(&mut self, elapsed: Duration) -> Result<(), ExecError> {
        if self.controls.trace {
            self.exchange.gather_all(&mut self.trainer)?;
            if let Some(trace) = &mut self.trace {
                let lines = trace.finish(&self.trainer)?;
                self.observer.trace(&lines)?;
            }
            self.trainer.weights.free_pieces();
        }
        let [data, forward, backward, optimizer] = self.clock.take()?;
        let (program, totals, tokens) = (self.context.program, &self.totals, self.agreement.tokens);
        let milliseconds = |duration: Duration| duration.as_secs_f64() * 1e3;
        let seconds = elapsed.as_secs_f64();
        let event = Event::Step(StepMetrics {
            step: self.trainer.state.step,
            epoch: self.data.epochs_after(self.trainer.state.step),
            loss: totals.loss / tokens.max(1) as f64,
            lr: self.learning_rate(),
            lr_by_group: self.trainer.lr_by_group(self.learning_rate()),
            grad_norm: totals.grad_norm,
            tokens,
            tokens_per_second: tokens as f64 / seconds,
            mfu: program.mfu(seconds),
            step_ms: milliseconds(elapsed),
            data_ms: milliseconds(data),
            forward_ms: milliseconds(forward),
            backward_ms: milliseconds(backward),
            optimizer_ms: milliseconds(optimizer),
            comm_ms: (!self.context.is_alone()).then_some(totals.communication * 1e3),
        });
        Ok(self.observer.observe(&event)?)
    }
}
