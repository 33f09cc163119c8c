//! The parts of a training step on one rank: forward, backward, clip, update. The order is the Program's business.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Result, Tensor};

use super::device;
use super::error::ExecError;
use runner_compute::kernels::{Math, optimizer};
use runner_compute::model::{Model, Output, Params, Saved, Seen, WeightWork, init};
use runner_compute::nn::MicroBatch;
use runner_compute::optim;
use runner_compute::state::TrainState;
use runner_spec::experiment::Precision;
use runner_spec::model::layout::{ParamEntry, ParamLayout};
use runner_spec::model::stage::{stage_parameters, tied_copy, tied_original};
use runner_spec::program::{OptimizerSpec, Program};

/// The parts of a model that a rank holds, with their training state and gradients.
#[derive(Debug)]
pub struct Trainer {
    /// One for each chunk; all read and write the same flat buffers.
    pub models: Vec<Model>,
    pub state: TrainState,
    /// What the forward reads: the master weights, or their rounded copy in a bf16 run.
    pub weights: Params,
    /// Sums over the micro-batches of the current step.
    pub grads: Params,
    optimizer: OptimizerSpec,
    /// Whether `weights` are a rounded copy.
    copied_weights: bool,
    /// Whether weights, gradients and moments are bf16 values themselves.
    bf16_state: bool,
    /// Elements of a tied embedding that another rank holds too and counts.
    copied: Option<Range<usize>>,
    device: Device,
}

/// The layout of the parameters that `program`'s rank holds.
#[must_use]
pub fn layout(program: &Program) -> ParamLayout {
    ParamLayout::new(stage_parameters(&program.model, &chunks(program)))
}

/// The entry of `layout`, which is `program`'s, that is a copy of a tied embedding on another rank: that one saves it.
#[must_use]
pub fn tied_entry(program: &Program, layout: &ParamLayout) -> Option<usize> {
    tied_copy(layout, &program.model, &chunks(program))
}

fn chunks(program: &Program) -> Vec<Range<usize>> {
    program.chunks.iter().map(|c| c.range()).collect()
}

/// Weights as they start: step 0 of the run.
///
/// # Errors
/// If the device cannot hold them.
pub fn initial_state(program: &Program) -> Result<TrainState> {
    drawn(program, &mut |_, _| Ok(()))
}

/// Changes the elements of a parameter.
type Then<'a, E> = dyn FnMut(&ParamEntry, &mut [f32]) -> std::result::Result<(), E> + 'a;

/// Weights as they are drawn, each parameter then changed by `then`.
pub(super) fn drawn<E: From<candle_core::Error>>(
    program: &Program,
    then: &mut Then<'_, E>,
) -> std::result::Result<TrainState, E> {
    let layout = Arc::new(layout(program));
    let mut values = vec![0.0_f32; layout.total * (1 + program.moments())];
    for entry in &layout.entries {
        let values = &mut values[entry.range()];
        init::fill(values, entry, program.seed);
        then(entry, values)?;
    }
    let len = values.len();
    let buffer = Tensor::from_vec(values, len, &Device::Cpu)?;
    Ok(TrainState { step: 0, tokens: 0, best: None, layout, buffer, moments: program.moments() })
}

impl Trainer {
    /// Takes over `state`, which is of any element type that kernels know.
    ///
    /// # Errors
    /// If the state is not one of this program, or memory is short.
    pub fn new(program: &Program, mut state: TrainState) -> std::result::Result<Self, ExecError> {
        let device = device::open(program.device, program.precision)?;
        state.buffer = device::moved(&state.buffer, &device)?;
        let math = Math { bf16: program.precision == Precision::Bf16 };
        let total = state.layout.total;
        if state.buffer.elem_count() != total * (1 + program.moments()) {
            let what = "the training state does not have this optimizer's moments";
            return Err(ExecError::Kernel(candle_core::Error::msg(what)));
        }
        let bf16_state = !program.master_weights;
        if bf16_state {
            // As they start, and whatever a checkpoint of another run holds.
            optimizer::round(&state.buffer)?;
        }
        let chunks = chunks(program);
        let model = |blocks: &Range<usize>| {
            Model::new(&program.model, state.layout.clone(), blocks.clone(), program.seed, math, &state.buffer)
                .map(|model| model.recomputing(program.recompute))
        };
        let models = chunks.iter().map(model).collect::<Result<Vec<_>>>()?;
        let copied_weights = device::is_copied(program, &device);
        let weights = if copied_weights {
            device::rounded(&state.layout, state.weights()?)?
        } else {
            Params::new(state.layout.clone(), state.weights()?)
        };
        let grads = Tensor::zeros(total, state.buffer.dtype(), state.buffer.device())?;
        let copied = tied_copy(&state.layout, &program.model, &chunks).map(|i| state.layout.entries[i].range());
        let trainer = Self {
            weights,
            grads: Params::new(state.layout.clone(), grads),
            models,
            state,
            optimizer: program.optimizer,
            copied_weights,
            bf16_state,
            copied,
            device,
        };
        trainer.refresh()?;
        Ok(trainer)
    }

    /// The forward of one chunk: `input` from the chunk before, nothing for the first.
    ///
    /// # Errors
    /// If ids are beyond the vocabulary, or memory is short.
    pub fn forward(&self, chunk: usize, input: Option<Tensor>, mb: &MicroBatch) -> Result<(Output, Vec<Saved>)> {
        self.models[chunk].forward(&self.weights, input, mb)
    }

    /// As `forward`; `seen` is shown the output of each block but the head, with its index in the model's list.
    ///
    /// # Errors
    /// As `forward`, and those of `seen`.
    pub fn forward_seen(
        &self,
        chunk: usize,
        input: Option<Tensor>,
        mb: &MicroBatch,
        seen: Seen<'_>,
    ) -> Result<(Output, Vec<Saved>)> {
        self.models[chunk].forward_seen(&self.weights, input, mb, seen)
    }

    /// Adds the gradients of `blocks`, the last of `saved`. `dy` comes from what follows them, nothing behind the head.
    ///
    /// # Errors
    /// If memory is short.
    pub fn backward(
        &self,
        chunk: usize,
        saved: &mut Vec<Saved>,
        dy: Option<Tensor>,
        mb: &MicroBatch,
        blocks: Range<usize>,
    ) -> Result<Option<Tensor>> {
        self.models[chunk].backward_blocks(&self.weights, &self.grads, saved, dy, mb, blocks)
    }

    /// The gradient of the chunk's input alone, and what the weights' gradients still need.
    ///
    /// # Errors
    /// If memory is short.
    pub fn backward_input(
        &self,
        chunk: usize,
        saved: Vec<Saved>,
        dy: Option<Tensor>,
        mb: &MicroBatch,
    ) -> Result<(Option<Tensor>, Vec<WeightWork>)> {
        self.models[chunk].backward_input(&self.weights, saved, dy, mb)
    }

    /// Adds the weights' gradients of `blocks`, the last of `work`.
    ///
    /// # Errors
    /// If memory is short.
    pub fn backward_weight(
        &self,
        chunk: usize,
        work: &mut Vec<WeightWork>,
        mb: &MicroBatch,
        blocks: Range<usize>,
    ) -> Result<()> {
        self.models[chunk].backward_weight(&self.grads, work, mb, blocks)
    }

    /// The ranges of the flat buffer that the parameters of `blocks` fill: at most one of decayed ones, one of others.
    #[must_use]
    pub fn ranges(&self, blocks: &Range<usize>) -> Vec<Range<usize>> {
        let mut out: Vec<Range<usize>> = Vec::new();
        for entry in self.state.layout.entries.iter().filter(|e| blocks.contains(&e.spec.block)) {
            let range = entry.range();
            match out.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => out.push(range),
            }
        }
        out
    }

    /// Elements of the tied embedding that another rank holds too: its own, or the copy.
    #[must_use]
    pub fn tied(&self, program: &Program) -> Option<Range<usize>> {
        let own = || tied_original(&self.state.layout, &program.model, &chunks(program));
        self.copied.clone().or_else(|| own().map(|i| self.state.layout.entries[i].range()))
    }

    /// Gradients as they are once they are summed: bf16 values where weights are.
    ///
    /// # Errors
    /// None on a CPU.
    pub fn finish_gradients(&self) -> Result<()> {
        if self.bf16_state { optimizer::round(&self.grads.flat) } else { Ok(()) }
    }

    /// The sum of squares of the gradients that this rank answers for: all but a copied embedding's.
    ///
    /// # Errors
    /// None on a CPU.
    pub fn grad_squares(&self) -> Result<f64> {
        self.grad_squares_there()?.into_iter().map(optimizer::Sum::read).sum()
    }

    /// Parts of `grad_squares`, which a GPU may not have come to yet.
    ///
    /// # Errors
    /// That of a launch.
    pub fn grad_squares_there(&self) -> Result<Vec<optimizer::Sum>> {
        let flat = &self.grads.flat;
        let Some(copied) = &self.copied else { return Ok(vec![optimizer::squares_there(flat)?]) };
        let rest = flat.narrow(0, copied.end, flat.elem_count() - copied.end)?;
        Ok(vec![optimizer::squares_there(&flat.narrow(0, 0, copied.start)?)?, optimizer::squares_there(&rest)?])
    }

    /// Whether the forward reads a copy of the weights whose matrices are rounded to bf16.
    #[must_use]
    pub fn has_rounded_copy(&self) -> bool {
        self.copied_weights
    }

    /// The forward reads the master weights as they are now.
    ///
    /// # Errors
    /// None on a CPU.
    pub fn refresh(&self) -> Result<()> {
        if self.has_rounded_copy() {
            device::round_again(&self.weights, &self.state.weights()?)?;
        }
        Ok(())
    }

    /// One optimizer step with the gradients times `grad_scale`, which are cleared; counts it.
    ///
    /// # Errors
    /// None on a CPU.
    pub fn update(&mut self, lr: f64, grad_scale: f64) -> Result<()> {
        let (state, grads) = (&self.state, &self.grads.flat);
        let copy = (self.copied_weights && !self.device.is_cpu()).then_some(&self.weights.flat);
        optim::update_copied(state, &self.optimizer, grads, lr, grad_scale, self.bf16_state, copy)?;
        if copy.is_none() {
            self.refresh()?;
        }
        self.end_step()
    }

    /// What it computes on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits for what was launched, on a device that runs beside the host.
    ///
    /// # Errors
    /// That of a kernel.
    pub fn synchronize(&self) -> Result<()> {
        device::synchronize(&self.device)
    }

    /// Clears the gradients and counts the step: how one ends on a rank that updates no weights.
    ///
    /// # Errors
    /// None on a CPU.
    pub fn end_step(&mut self) -> Result<()> {
        optimizer::clear(&self.grads.flat)?;
        self.state.step += 1;
        Ok(())
    }
}
