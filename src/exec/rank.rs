//! The interpreter: one rank executes its Program, instruction by instruction.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::diagnose;
use super::error::ExecError;
use super::event::{EvalMetrics, Event, Observer, SampleText, StepMetrics};
use super::state::{Best, TrainState};
use super::step::Trainer;
use crate::data::{ChoiceItem, Dataset, Rows, Sampler, TextTokenizer};
use crate::eval::{self, EvalError};
use crate::model::Saved;
use crate::nn::MicroBatch;
use crate::optim;
use crate::plan::program::{Instruction, Program};

/// What a rank works with besides its program.
#[derive(Debug, Clone, Copy)]
pub struct Resources<'a> {
    pub dataset: &'a Dataset,
    pub tokenizer: &'a TextTokenizer,
    /// Items of the multiple-choice evaluation, where there is one.
    pub choice: Option<&'a [ChoiceItem]>,
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    pub state: TrainState,
    /// Stopped on request, before its last step.
    pub interrupted: bool,
}

/// Runs `program` from `state` on, to its end or until `stop` is set. What happens goes to `observer`.
///
/// # Errors
/// A number that is not finite, data that cannot be read, memory, or the observer's own.
pub fn run(
    program: &Program,
    resources: &Resources,
    state: TrainState,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Outcome, ExecError> {
    let trainer = Trainer::new(program, state)?;
    let sampler = Sampler::new(program.seed, resources.dataset.train().rows());
    let mut rank = Rank { program, resources, trainer, sampler, observer, step: Step::default(), at: 0 };
    rank.observer.observe(&Event::Start { state: &rank.trainer.state, steps: program.steps })?;
    if rank.trainer.state.step == 0 {
        for instruction in &program.start {
            rank.execute(*instruction)?;
        }
    }
    // Before the first step there is nothing to save.
    let mut interrupted = rank.trainer.state.step == 0 && stop.load(Ordering::Relaxed);
    while rank.trainer.state.step < program.steps && !interrupted {
        interrupted = rank.one_step(stop)?;
    }
    Ok(Outcome { state: rank.trainer.state, interrupted })
}

/// One micro-batch on its way through the step.
#[derive(Debug)]
struct InFlight {
    rows: Rows,
    saved: Option<(MicroBatch, Vec<Saved>)>,
}

/// What one optimizer step adds up.
#[derive(Debug, Default)]
struct Step {
    micro_batches: Vec<Option<InFlight>>,
    /// Valid tokens of the global batch.
    tokens: u64,
    /// Summed negative log-likelihood.
    loss: f64,
    grad_norm: f64,
    grad_scale: f64,
    lr: f64,
    data: Duration,
    forward: Duration,
    backward: Duration,
    optimizer: Duration,
}

struct Rank<'a> {
    program: &'a Program,
    resources: &'a Resources<'a>,
    trainer: Trainer,
    sampler: Sampler,
    observer: &'a mut dyn Observer,
    step: Step,
    /// The current step, from 0.
    at: u64,
}

impl Rank<'_> {
    /// The step's instructions, then the periodic ones that are due. Returns whether to stop.
    fn one_step(&mut self, stop: &AtomicBool) -> Result<bool, ExecError> {
        let started = Instant::now();
        self.at = self.trainer.state.step;
        self.step = Step { grad_scale: 1.0, ..Step::default() };
        self.step.micro_batches.resize_with(self.program.batch.micro_batches(), || None);
        for instruction in &self.program.step {
            self.execute(*instruction)?;
        }
        self.report(started.elapsed())?;
        let done = self.trainer.state.step;
        let stopping = stop.load(Ordering::Relaxed) && done < self.program.steps;
        let mut saved = false;
        for p in &self.program.periodic {
            if p.due(done, self.program.steps) {
                self.execute(p.instruction)?;
                saved |= p.instruction == Instruction::Checkpoint;
            }
        }
        // A request to stop may come during a long evaluation; what counts is whether the state is saved.
        let stopping = stopping || (stop.load(Ordering::Relaxed) && done < self.program.steps);
        if stopping && !saved {
            self.execute(Instruction::Checkpoint)?;
        }
        Ok(stopping)
    }

    fn execute(&mut self, instruction: Instruction) -> Result<(), ExecError> {
        let started = Instant::now();
        match instruction {
            Instruction::Load { mb } => {
                self.load(mb)?;
                self.step.data += started.elapsed();
            }
            Instruction::CountTokens { .. } => {}
            Instruction::Forward { mb, .. } => {
                self.forward(mb)?;
                self.step.forward += started.elapsed();
            }
            Instruction::Backward { mb, .. } => {
                self.backward(mb)?;
                self.step.backward += started.elapsed();
            }
            Instruction::ClipNorm { max } => {
                self.clip(max)?;
                self.step.optimizer += started.elapsed();
            }
            Instruction::OptimizerStep => {
                self.step.lr = optim::lr::lr_at(&self.program.schedule, self.at);
                self.trainer.update(self.step.lr, self.step.grad_scale)?;
                self.trainer.state.tokens += self.step.tokens;
                self.step.optimizer += started.elapsed();
            }
            Instruction::BroadcastWeights
            | Instruction::BackwardInput { .. }
            | Instruction::BackwardWeight { .. }
            | Instruction::SendActivation { .. }
            | Instruction::RecvActivation { .. }
            | Instruction::SendGradient { .. }
            | Instruction::RecvGradient { .. }
            | Instruction::AllReduce { .. }
            | Instruction::WaitBuckets
            | Instruction::ReduceToRoot { .. }
            | Instruction::SumTied
            | Instruction::ZeroGradients => return Err(ExecError::Program(format!("{instruction} needs other ranks"))),
            Instruction::Evaluate => self.evaluate()?,
            Instruction::Sample => self.sample()?,
            Instruction::Checkpoint => {
                if let Some(first) = diagnose::weights(&self.trainer)? {
                    return Err(ExecError::NotFinite { step: self.trainer.state.step, what: "update", first });
                }
                self.observer.observe(&Event::Checkpoint { state: &self.trainer.state })?;
            }
        }
        Ok(())
    }

    /// An evaluation's result; one that is not finite stops the run, with the tensor that went bad.
    fn finite<T>(&self, result: Result<T, EvalError>) -> Result<T, ExecError> {
        let Err(EvalError::NotFinite(what)) = result else { return Ok(result?) };
        let first = diagnose::weights(&self.trainer)?.unwrap_or_else(|| "the logits".to_owned());
        Err(ExecError::NotFinite { step: self.trainer.state.step, what, first })
    }

    fn load(&mut self, mb: usize) -> Result<(), ExecError> {
        let (first, count) = self.program.batch.rows(mb);
        let position = self.at * self.program.batch.sequences as u64 + first as u64;
        let mut rows = Rows::default();
        let indices = (position..position + count as u64).map(|p| self.sampler.index(p));
        self.resources.dataset.train().fill(indices, &mut rows)?;
        self.step.tokens += rows.valid();
        self.step.micro_batches[mb] = Some(InFlight { rows, saved: None });
        Ok(())
    }

    fn forward(&mut self, mb: usize) -> Result<(), ExecError> {
        let Some(in_flight) = &mut self.step.micro_batches[mb] else {
            return Err(ExecError::Program(format!("forward of micro-batch {mb} before its load")));
        };
        let targets = std::mem::take(&mut in_flight.rows.targets);
        let batch = MicroBatch {
            step: self.at,
            first_sample: self.program.batch.rows(mb).0 as u64,
            scale: 1.0 / self.step.tokens.max(1) as f64,
            training: true,
            ..self.trainer.model.micro_batch(&in_flight.rows.inputs, targets, in_flight.rows.length)?
        };
        let (losses, saved) = self.trainer.forward(&batch)?;
        let loss = losses.iter().copied().map(f64::from).sum::<f64>();
        if !loss.is_finite() {
            let first = diagnose::forward(&self.trainer, &batch)?;
            return Err(ExecError::NotFinite { step: self.at + 1, what: "loss", first });
        }
        self.step.loss += loss;
        in_flight.saved = Some((batch, saved));
        Ok(())
    }

    fn backward(&mut self, mb: usize) -> Result<(), ExecError> {
        let Some((batch, saved)) = self.step.micro_batches[mb].take().and_then(|m| m.saved) else {
            return Err(ExecError::Program(format!("backward of micro-batch {mb} before its forward")));
        };
        Ok(self.trainer.backward(saved, &batch)?)
    }

    fn clip(&mut self, max: Option<f64>) -> Result<(), ExecError> {
        let norm = self.trainer.grad_norm()?;
        if !norm.is_finite() {
            let first = diagnose::gradients(&self.trainer)?;
            return Err(ExecError::NotFinite { step: self.at + 1, what: "gradient norm", first });
        }
        self.step.grad_norm = norm;
        self.step.grad_scale = optim::clip_scale(norm, max);
        Ok(())
    }

    fn report(&mut self, elapsed: Duration) -> Result<(), ExecError> {
        let s = &self.step;
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        let seconds = elapsed.as_secs_f64();
        let event = Event::Step(StepMetrics {
            step: self.trainer.state.step,
            loss: s.loss / s.tokens.max(1) as f64,
            lr: s.lr,
            grad_norm: s.grad_norm,
            tokens: s.tokens,
            tokens_per_second: s.tokens as f64 / seconds,
            mfu: self.program.peak_flops.map(|peak| self.program.flops_per_step / (peak * seconds)),
            step_ms: ms(elapsed),
            data_ms: ms(s.data),
            forward_ms: ms(s.forward),
            backward_ms: ms(s.backward),
            optimizer_ms: ms(s.optimizer),
        });
        Ok(self.observer.observe(&event)?)
    }

    fn evaluate(&mut self) -> Result<(), ExecError> {
        let started = Instant::now();
        let (model, weights) = (&self.trainer.model, &self.trainer.weights);
        let step = self.trainer.state.step;
        let mut metrics = EvalMetrics { step, ..EvalMetrics::default() };
        if let (Some(spec), Some(split)) = (self.program.eval.loss, self.resources.dataset.validation()) {
            let batch = self.program.batch.micro_batch;
            let result = eval::loss::validation_loss(model, weights, split, spec.batches, batch);
            let result = self.finite(result)?;
            metrics.val_loss = Some(result.loss);
            metrics.val_perplexity = Some(result.perplexity());
        }
        if let (Some(_), Some(items)) = (self.program.eval.choice_items, self.resources.choice) {
            let score = self.finite(eval::choice::score(model, weights, items))?;
            metrics.hellaswag_acc = Some(score.acc());
            metrics.hellaswag_acc_norm = Some(score.acc_norm());
            metrics.hellaswag_n = Some(score.items as u64);
        }
        // Before the first step there is nothing to keep as the best.
        if let Some(val_loss) = metrics.val_loss
            && step > 0
            && self.trainer.state.best.is_none_or(|b| val_loss < b.val_loss)
        {
            self.trainer.state.best = Some(Best { step, val_loss });
        }
        metrics.eval_ms = started.elapsed().as_secs_f64() * 1e3;
        Ok(self.observer.observe(&Event::Eval(metrics))?)
    }

    fn sample(&mut self) -> Result<(), ExecError> {
        let Some(spec) = &self.program.eval.samples else { return Ok(()) };
        let step = self.trainer.state.step;
        for c in eval::generate(&self.trainer.model, &self.trainer.weights, self.resources.tokenizer, spec)? {
            let sample = SampleText { step, prompt: c.prompt, index: c.index, text: c.text };
            self.observer.observe(&Event::Sample(sample))?;
        }
        Ok(())
    }
}
