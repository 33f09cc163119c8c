//! The training of one rank: its part of the model with weights, gradients and moments, and the operations on them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Result as TensorResult, Tensor};
use half::bf16;

use super::device;
use super::error::ExecError;
use runner_compute::kernels::cpu::Stored;
use runner_compute::kernels::{optimizer, storage};
use runner_compute::model::{Model, Params, init};
use runner_compute::optim;
use runner_compute::state::TrainState;
use runner_spec::model::layout::{ParamEntry, ParamLayout, common_range};
use runner_spec::model::stage::{tied_copy, tied_original};
use runner_spec::model::{InitialWeights, ParamRole};
use runner_spec::optimizer::ParameterGroup;
use runner_spec::program::{BlockRange, Instruction, Precision, Program, ShardedState};

/// The parts of a model that a rank holds, with their training state and gradients.
#[derive(Debug)]
pub struct Trainer {
    /// One for each chunk; all read and write the same flat buffers.
    pub models: Vec<Model>,
    pub state: TrainState,
    /// The weights that the forward reads: those of the state, their rounded copy in a bf16 run with master weights, or those of all
    /// replicas where the state is a shard; matrices come and go if replicas divide the weights, too.
    pub weights: Params,
    /// Sums over the micro-batches of the current step. They come and go if replicas divide them.
    pub grads: Params,
    /// The matrices whose gradients the first micro-batch of a step overwrites: on a GPU those that one product alone makes.
    overwritten: Vec<usize>,
    /// The gradients of the shard, summed over the replicas, where these divide them: `[shard]`, there until the update.
    pub shard_gradients: Option<Tensor>,
    held_at_most: HeldAtMost,
    groups: Vec<ParameterGroup>,
    /// Factors on the learning rate, by groups of the whole model, where there are several.
    lr_scales: BTreeMap<String, f64>,
    /// The type of an optimizer's matrix products.
    products: DType,
    /// True if `weights` are a copy that is rounded to bf16.
    pub has_rounded_copy: bool,
    /// The elements of the flat storage that `state` holds, if it is a shard.
    shard: Option<Range<usize>>,
    /// Elements of a tied embedding that another rank holds too. That rank counts their gradients.
    tied_copy: Option<Range<usize>>,
    pub device: Device,
}

/// The most elements that a step has held at once.
#[derive(Debug, Clone, Copy, Default)]
struct HeldAtMost {
    weights: usize,
    gradients: usize,
}

/// The entry of `program`'s `layout` that copies a tied embedding of another rank, which saves it.
pub fn tied_copy_entry(program: &Program, layout: &ParamLayout) -> Option<usize> {
    tied_copy(layout, &program.model, &chunk_ranges(program))
}

/// The elements of each bucket among `elements`, in the order of the buffer.
fn bucket_pieces(program: &Program, layout: &ParamLayout, elements: &Range<usize>) -> Vec<Range<usize>> {
    let of_buckets = program.buckets.iter().flat_map(|bucket| layout.block_ranges(bucket.range()));
    let mut pieces: Vec<Range<usize>> = of_buckets.filter_map(|range| common_range(&range, elements)).collect();
    pieces.sort_unstable_by_key(|piece| piece.start);
    pieces
}

fn chunk_ranges(program: &Program) -> Vec<Range<usize>> {
    program.chunks.iter().map(|c| c.range()).collect()
}

/// The type in which `program`'s rank stores weights, gradients and moments.
pub fn state_dtype(program: &Program) -> DType {
    if program.master_weights { DType::F32 } else { DType::BF16 }
}

/// The state at step 0. Parameters that `given` has are taken from it, the others are drawn from the program's seed.
///
/// # Errors
/// If memory is short, or `given` fails.
pub fn initial_state(program: &Program, given: Option<&dyn InitialWeights>) -> Result<TrainState, ExecError> {
    let layout = Arc::new(program.state_layout());
    let buffer = match state_dtype(program) {
        DType::BF16 => initial_buffer::<bf16>(program, &layout, given)?,
        _ => initial_buffer::<f32>(program, &layout, given)?,
    };
    Ok(TrainState { step: 0, tokens: 0, best: None, layout, buffer, moments: program.moments() })
}

/// The buffer of the state at step 0. Given weights pass through f32, one parameter at a time.
fn initial_buffer<S: Stored<Real = f32>>(
    program: &Program,
    layout: &ParamLayout,
    given: Option<&dyn InitialWeights>,
) -> Result<Tensor, ExecError> {
    let len = layout.state_len(program.moments());
    let mut buffer = vec![S::store(0.0); len];
    for entry in &layout.entries {
        let stored = &mut buffer[entry.range()];
        let Some(given) = given else {
            init::fill(stored, entry, program.seed.init);
            continue;
        };
        let mut values = vec![0.0; entry.spec.len()];
        init::fill(&mut values, entry, program.seed.init);
        given.fill(&entry.spec, &mut values).map_err(ExecError::InitialWeights)?;
        stored.iter_mut().zip(values).for_each(|(stored, value)| *stored = S::store(value));
    }
    Ok(Tensor::from_vec(buffer, len, &Device::Cpu)?)
}

impl Trainer {
    /// Moves `state` to the program's device. Without master weights it becomes bf16; otherwise any type that kernels know will do.
    ///
    /// # Errors
    /// If the state is not one of this program, or memory is short.
    pub fn new(program: &Program, mut state: TrainState) -> Result<Self, ExecError> {
        let device = device::open(program.device, program.precision)?;
        if !program.master_weights && state.buffer.dtype() != DType::BF16 {
            state.buffer = storage::converted(&state.buffer)?;
        }
        state.buffer = device::move_to_device(&state.buffer, &device)?;
        if state.buffer.elem_count() != state.layout.state_len(program.moments()) {
            let what = "the training state does not have this optimizer's moments";
            return Err(ExecError::Kernel(candle_core::Error::msg(what)));
        }
        let shard = program.shard();
        let layout = if shard.is_some() { Arc::new(program.parameter_layout()) } else { state.layout.clone() };
        let chunks = chunk_ranges(program);
        let model = |blocks: &Range<usize>| {
            Model::new(&program.model, layout.clone(), blocks.clone(), program.seed.dropout, &state.buffer)
                .map(|model| model.with_recompute(program.recompute))
        };
        let models = chunks.iter().map(model).collect::<TensorResult<Vec<_>>>()?;
        let pieces = |state, elements: Range<usize>| {
            if program.divides(state) { bucket_pieces(program, &layout, &elements) } else { Vec::new() }
        };
        let zeroed = |dtype| {
            let matrices = pieces(ShardedState::Parameters, 0..layout.matrices);
            Params::zeroed(layout.clone(), dtype, state.buffer.device(), matrices)
        };
        let weights = match program.precision {
            _ if shard.is_none() => device::weights_to_read(program.precision, &layout, state.weights()?)?,
            Precision::Bf16 => zeroed(DType::BF16)?,
            Precision::Fp32 | Precision::Tf32 => zeroed(state.buffer.dtype())?,
        };
        let has_rounded_copy = weights.flat.dtype() != state.buffer.dtype();
        let pieces = pieces(ShardedState::Gradients, 0..layout.total);
        let kept = if pieces.is_empty() { layout.total } else { 0 };
        let grads = storage::zeros(kept, state.buffer.dtype(), state.buffer.device())?;
        // Tables get sums of rows; the embedding's, where it is tied, a product's, too.
        let tokens = program.model.decoder().embedding.tokens;
        let is_overwritten = |entry: &&ParamEntry| {
            let is_of_product = entry.spec.is_matrix() && entry.spec.role == ParamRole::Weight;
            is_of_product && entry.spec.block > 0 && entry.spec.name != tokens
        };
        let overwritten = if device.is_cuda() && pieces.is_empty() {
            layout
                .entries
                .iter()
                .enumerate()
                .filter(|(_, entry)| is_overwritten(entry))
                .map(|(index, _)| index)
                .collect()
        } else {
            Vec::new()
        };
        let tied_copy = tied_copy(&layout, &program.model, &chunks).map(|i| layout.entries[i].range());
        let trainer = Self {
            groups: program.parameter_groups(&state.layout),
            lr_scales: program.lr_scales(),
            products: weights.activation_dtype(),
            weights,
            grads: Params::in_pieces(layout, grads, pieces),
            overwritten,
            shard_gradients: None,
            held_at_most: HeldAtMost::default(),
            models,
            state,
            has_rounded_copy,
            shard,
            tied_copy,
            device,
        };
        if trainer.shard.is_some() && !program.divides(ShardedState::Parameters) {
            trainer.refresh()?;
        }
        Ok(trainer)
    }

    /// The elements of the tied embedding that two ranks hold, where this rank is one of them.
    pub fn tied_range(&self, program: &Program) -> Option<Range<usize>> {
        let layout = &self.grads.layout;
        let own = || tied_original(layout, &program.model, &chunk_ranges(program));
        self.tied_copy.clone().or_else(|| own().map(|i| layout.entries[i].range()))
    }

    /// Launches the sums of squares of the gradients that this rank counts: all but those of a copied embedding, or those of its shard
    /// where they are divided. Reading one waits for a GPU.
    ///
    /// # Errors
    /// If a launch fails.
    pub fn launch_grad_squares(&self) -> TensorResult<Vec<optimizer::DeviceSum>> {
        let flat = self.shard_gradients.as_ref().unwrap_or(&self.grads.flat);
        let Some(copied) = &self.tied_copy else { return Ok(vec![optimizer::sum_of_squares(flat)?]) };
        let rest = flat.narrow(0, copied.end, flat.elem_count() - copied.end)?;
        Ok(vec![optimizer::sum_of_squares(&flat.narrow(0, 0, copied.start)?)?, optimizer::sum_of_squares(&rest)?])
    }

    /// Refreshes copies of weights, so that the forward reads the current ones. Where the state is a shard, the others come from their
    /// ranks.
    ///
    /// # Errors
    /// None on a CPU.
    pub fn refresh(&self) -> TensorResult<()> {
        match &self.shard {
            Some(shard) => self.store_own(shard),
            None => self.weights.refresh(&self.state.weights()?),
        }
    }

    /// Copies the weights of the elements `range` of the shard from the state.
    fn store_own(&self, range: &Range<usize>) -> TensorResult<()> {
        let first = self.shard.as_ref().map_or(0, |shard| shard.start);
        self.weights.store(range.start, &self.state.weights()?.narrow(0, range.start - first, range.len())?)
    }

    /// Brings buffers for the weights of `ranges`, with those of the shard in them, where weights come and go.
    ///
    /// # Errors
    /// If memory is short.
    pub fn hold_weights(&mut self, ranges: &[Range<usize>]) -> TensorResult<()> {
        if !self.weights.has_temporary_pieces() {
            return Ok(());
        }
        self.weights.hold(ranges)?;
        self.note_held();
        let Some(shard) = self.shard.clone() else { return Ok(()) };
        ranges.iter().filter_map(|range| common_range(range, &shard)).try_for_each(|own| self.store_own(&own))
    }

    /// Keeps the summed gradients of the shard's elements in `ranges`.
    ///
    /// # Errors
    /// If memory is short.
    pub fn keep_sums(&mut self, ranges: &[Range<usize>]) -> TensorResult<()> {
        let Some(shard) = self.shard.clone() else { return Ok(()) };
        let sums = match self.shard_gradients.take() {
            Some(sums) => sums,
            None => storage::zeros(shard.len(), self.grads.flat.dtype(), self.grads.flat.device())?,
        };
        for own in ranges.iter().filter_map(|range| common_range(range, &shard)) {
            storage::copy(&sums.narrow(0, own.start - shard.start, own.len())?, &self.grads.narrow(&own)?)?;
        }
        self.shard_gradients = Some(sums);
        self.note_held();
        Ok(())
    }

    /// Brings buffers for the gradients to which `instruction` adds, if it is a backward, where they come and go: also that of a tied
    /// embedding, to which the head's does.
    ///
    /// # Errors
    /// If memory is short.
    pub fn hold_gradients_of(&mut self, program: &Program, instruction: Instruction) -> TensorResult<()> {
        let (Instruction::Backward { .. } | Instruction::BackwardWeight { .. }) = instruction else { return Ok(()) };
        let Some(blocks) = instruction.blocks_run(program).filter(|_| self.grads.has_temporary_pieces()) else {
            return Ok(());
        };
        for bucket in program.buckets_read_by(blocks) {
            self.grads.hold(&self.grads.layout.block_ranges(program.buckets[bucket].range()))?;
        }
        self.note_held();
        Ok(())
    }

    /// Notes how much is held now.
    fn note_held(&mut self) {
        let most = &mut self.held_at_most;
        most.weights = most.weights.max(self.weights.held());
        most.gradients =
            most.gradients.max(self.grads.held() + self.shard_gradients.as_ref().map_or(0, Tensor::elem_count));
    }

    /// Begins a step: what was held at most is counted for it alone.
    pub fn start_step(&mut self) {
        // An evaluation held all weights.
        self.weights.free_spare();
        self.held_at_most = HeldAtMost::default();
        self.note_held();
    }

    /// The weights that the last update made, unrounded; where the state is a shard, as the forward reads them.
    ///
    /// # Errors
    /// If the buffers do not match the layout.
    pub fn updated_weights(&self) -> TensorResult<Params> {
        if self.shard.is_some() { Ok(self.weights.clone()) } else { self.updated_by_this_rank() }
    }

    /// The weights of the state, which this rank updates.
    ///
    /// # Errors
    /// If the buffers do not match the layout.
    pub fn updated_by_this_rank(&self) -> TensorResult<Params> {
        Ok(Params::new(self.state.layout.clone(), self.state.weights()?))
    }

    /// Bytes of the copies of weights that the last step held at most beside the state.
    pub fn copied_weight_bytes(&self) -> usize {
        let bytes = |copy: &Tensor| copy.elem_count() * copy.dtype().size_in_bytes();
        let weights = self.held_at_most.weights * self.weights.flat.dtype().size_in_bytes();
        match self.weights.exact_vectors() {
            vectors if self.shard.is_some() => weights + vectors.map_or(0, bytes),
            _ if self.has_rounded_copy => weights,
            Some(vectors) => bytes(vectors),
            None => 0,
        }
    }

    /// Bytes of gradients that the last step held at most.
    pub fn gradient_bytes(&self) -> usize {
        self.held_at_most.gradients * self.grads.flat.dtype().size_in_bytes()
    }

    /// The learning rates of groups of parameters at the rate `lr`; none if there is one rate.
    pub fn lr_by_group(&self, lr: f64) -> BTreeMap<String, f64> {
        self.lr_scales.iter().map(|(name, scale)| (name.clone(), lr * scale)).collect()
    }

    /// One optimizer step with the gradients times `grad_scale`. Clears the gradients and counts the step.
    ///
    /// # Errors
    /// None on a CPU.
    pub fn update(&mut self, lr: f64, grad_scale: f64) -> TensorResult<()> {
        self.grads.ensure_written()?;
        let grads = match (&self.shard_gradients, &self.shard) {
            (Some(sums), _) => sums.clone(),
            (None, Some(shard)) => self.grads.narrow(shard)?,
            (None, None) => self.grads.flat.clone(),
        };
        let copy = (self.has_rounded_copy && self.shard.is_none()).then_some(&self.weights.flat);
        optim::update(&self.state, &self.groups, &grads, [lr, grad_scale], copy, self.products)?;
        if copy.is_none() && !self.weights.has_temporary_pieces() {
            self.refresh()?;
        }
        self.end_step()
    }

    /// Clears the gradients and counts the step. A rank that updates no weights ends its step this way.
    ///
    /// # Errors
    /// None on a CPU.
    pub fn end_step(&mut self) -> TensorResult<()> {
        self.state.step += 1;
        self.clear_gradients()
    }

    /// # Errors
    /// None on a CPU.
    pub fn clear_gradients(&mut self) -> TensorResult<()> {
        self.shard_gradients = None;
        self.grads.free_pieces();
        self.grads.clear(&self.overwritten)
    }

    /// Frees the weights of `blocks`, where they come and go.
    pub fn release_weights(&mut self, blocks: BlockRange) {
        self.weights.release(&self.weights.layout.block_ranges(blocks.range()));
    }
}
