//! The forward and backward passes of one step's micro-batches, with the tensors that are kept between them.

use candle_core::Tensor;

use super::error::ExecError;
use super::non_finite;
use super::rank_context::RankContext;
use super::trace::Trace;
use super::trainer::Trainer;
use runner_compute::kernels::optimizer::DeviceSum;
use runner_compute::model::{Output, SavedActivations, Stream};
use runner_compute::nn::{DeferredGradients, MicroBatch};
use runner_spec::data::Rows;
use runner_spec::program::BlockRange;
use runner_spec::topology::Lane;

/// The tensors that are kept of one micro-batch on one chunk between instructions.
#[derive(Debug, Default)]
struct ChunkTensors {
    /// From the chunk before, until the forward.
    input: Option<Stream>,
    /// From the forward, until it is sent.
    output: Option<Stream>,
    saved: Option<Vec<SavedActivations>>,
    /// The gradient as far as the backward has come: received, passed from block to block, sent.
    gradient: Option<Stream>,
    /// The work that `backward_input` leaves to the weights' gradients.
    weight_work: Option<Vec<DeferredGradients>>,
}

/// The passes of one step.
pub(super) struct Passes<'a> {
    context: RankContext<'a>,
    /// Counts from 0.
    step: u64,
    /// Valid tokens of the rows that were added.
    valid_tokens: u64,
    /// The batch of each micro-batch, once its rows are loaded.
    batches: Vec<Option<MicroBatch>>,
    /// Tensors by chunk and micro-batch.
    tensors: Vec<Vec<ChunkTensors>>,
    /// Summed negative log-likelihood of this rank's micro-batches that was read so far.
    loss: f64,
    /// Summed losses by micro-batch that a GPU may still be computing.
    unread_losses: Vec<(usize, DeviceSum)>,
}

fn repeat_default<T: Default>(count: usize) -> Vec<T> {
    std::iter::repeat_with(T::default).take(count).collect()
}

impl<'a> Passes<'a> {
    pub(super) fn new(context: RankContext<'a>, step: u64) -> Self {
        let (chunks, micro_batches) = (context.program.chunks.len(), context.program.batch.micro_batches());
        Self {
            context,
            step,
            valid_tokens: 0,
            batches: repeat_default(micro_batches),
            tensors: std::iter::repeat_with(|| repeat_default(micro_batches)).take(chunks).collect(),
            loss: 0.0,
            unread_losses: Vec::new(),
        }
    }

    /// Makes the micro-batch that layers read. Rows go to a GPU here, before anything waits for another rank: the memory of the host
    /// that they are sent from may have to be allocated, which waits for all transfers under way.
    pub(super) fn add_rows(&mut self, trainer: &Trainer, mb: usize, rows: Rows) -> Result<(), ExecError> {
        self.valid_tokens += rows.valid();
        let spec = &self.context.program.batch;
        self.batches[mb] = Some(MicroBatch {
            step: self.step,
            first_sample: spec.rows(mb).0 as u64,
            sample_stride: spec.stride as u64,
            training: true,
            ..trainer.models[0]
                .micro_batch(&rows.inputs, rows.targets, rows.length)?
                .with_valid_lengths(&rows.filled)?
        });
        Ok(())
    }

    pub(super) fn valid_tokens(&self) -> u64 {
        self.valid_tokens
    }

    /// Settles the weight of a token in the loss, given the valid tokens of the global batch: 1 / `tokens`.
    pub(super) fn set_global_tokens(&mut self, tokens: u64) {
        for batch in self.batches.iter_mut().flatten() {
            batch.scale = 1.0 / tokens.max(1) as f64;
        }
    }

    /// Runs `blocks` forward, the first of the chunk that have not been run yet; `None`: the whole chunk.
    pub(super) fn forward(
        &mut self,
        trainer: &Trainer,
        mb: usize,
        chunk: usize,
        blocks: Option<BlockRange>,
        mut trace: Option<&mut Trace>,
    ) -> Result<(), ExecError> {
        let batch = loaded(&self.batches, mb)?;
        let tensors = &mut self.tensors[chunk][mb];
        let whole = self.context.program.chunks[chunk];
        let blocks = blocks.unwrap_or(whole);
        let input = if blocks.start == whole.start { tensors.input.take() } else { tensors.output.take() };
        // A second handle, with which a loss that is not finite is traced to its block.
        let replay_input = input.clone().filter(|_| blocks == whole);
        let saved = tensors.saved.get_or_insert_default();
        let output = trainer.models[chunk].forward_blocks(
            &trainer.weights,
            input,
            batch,
            blocks.range(),
            saved,
            &mut |block, output| trace.as_mut().map_or(Ok(()), |trace| trace.record_output(mb, block, output)),
        )?;
        match output {
            Output::Hidden(hidden) => tensors.output = Some(hidden),
            Output::Losses(losses) => {
                if let Some(trace) = trace {
                    trace.record_losses(mb, self.context.program.model.layers + 1, &losses.read()?);
                }
                match losses.sum()? {
                    DeviceSum::Ready(loss) if !loss.is_finite() => {
                        let first = non_finite::find_in_forward(trainer, chunk, replay_input, batch)?;
                        return Err(ExecError::NotFinite { step: self.step + 1, what: "loss", first });
                    }
                    DeviceSum::Ready(loss) => self.loss += loss,
                    pending @ DeviceSum::Pending(_) => self.unread_losses.push((mb, pending)),
                }
            }
        }
        Ok(())
    }

    /// The summed loss of this rank's micro-batches. Waits for the losses that a GPU still computes.
    pub(super) fn read_loss(&mut self, trainer: &Trainer) -> Result<f64, ExecError> {
        for (mb, losses) in self.unread_losses.drain(..) {
            let loss = losses.read()?;
            if !loss.is_finite() {
                self.context.ensure_run_continues()?;
                let chunk = self.context.program.chunks.len() - 1;
                // Input from another stage is no longer there; a chunk that starts with the embedding can run again.
                let first = if self.context.program.chunks[chunk].start == 0 {
                    non_finite::find_in_forward(trainer, chunk, None, loaded(&self.batches, mb)?)?
                } else {
                    non_finite::find_in_weights(trainer)?.unwrap_or_else(|| "the losses".to_owned())
                };
                return Err(ExecError::NotFinite { step: self.step + 1, what: "loss", first });
            }
            self.loss += loss;
        }
        Ok(self.loss)
    }

    /// Adds the gradients of `blocks`, the last of the chunk that have not been run backward yet; `None`: the whole chunk.
    pub(super) fn backward(
        &mut self,
        trainer: &Trainer,
        mb: usize,
        chunk: usize,
        blocks: Option<BlockRange>,
    ) -> Result<(), ExecError> {
        let whole = self.context.program.chunks[chunk];
        let blocks = blocks.unwrap_or(whole);
        let tensors = &mut self.tensors[chunk][mb];
        let mut saved = take_saved(tensors, mb)?;
        let dy = tensors.gradient.take();
        let (model, batch) = (&trainer.models[chunk], loaded(&self.batches, mb)?);
        tensors.gradient =
            model.backward_blocks(&trainer.weights, &trainer.grads, &mut saved, dy, batch, blocks.range())?;
        tensors.saved = (blocks.start > whole.start).then_some(saved);
        Ok(())
    }

    pub(super) fn backward_input(&mut self, trainer: &Trainer, mb: usize, chunk: usize) -> Result<(), ExecError> {
        let tensors = &mut self.tensors[chunk][mb];
        let saved = take_saved(tensors, mb)?;
        let dy = tensors.gradient.take();
        let batch = loaded(&self.batches, mb)?;
        let (dx, work) = trainer.models[chunk].backward_input(&trainer.weights, saved, dy, batch)?;
        (tensors.gradient, tensors.weight_work) = (dx, Some(work));
        Ok(())
    }

    /// Adds the weights' gradients of `blocks`, the last of the chunk that `backward_input` left; `None`: the whole chunk.
    pub(super) fn backward_weight(
        &mut self,
        trainer: &Trainer,
        mb: usize,
        chunk: usize,
        blocks: Option<BlockRange>,
    ) -> Result<(), ExecError> {
        let whole = self.context.program.chunks[chunk];
        let blocks = blocks.unwrap_or(whole);
        let tensors = &mut self.tensors[chunk][mb];
        let Some(mut work) = tensors.weight_work.take() else {
            return Err(ExecError::Program(format!("weight gradients of micro-batch {mb} before its input gradient")));
        };
        trainer.models[chunk].backward_weight(&trainer.grads, &mut work, blocks.range())?;
        tensors.weight_work = (blocks.start > whole.start).then_some(work);
        Ok(())
    }

    /// Sends the output of micro-batch `mb` (`Lane::Activation`), or the gradient of its input.
    pub(super) fn send(&mut self, mb: usize, chunk: usize, to: usize, lane: Lane) -> Result<(), ExecError> {
        let tensors = &mut self.tensors[chunk][mb];
        let tensor = if lane == Lane::Activation { tensors.output.take() } else { tensors.gradient.take() };
        let Some(tensor) = tensor else {
            return Err(ExecError::Program(format!("nothing to send of micro-batch {mb}")));
        };
        self.context.send(to, lane, &tensor.packed()?)
    }

    /// Receives the input of micro-batch `mb` (`Lane::Activation`), or the gradient of its output.
    pub(super) fn receive(
        &mut self,
        trainer: &Trainer,
        (mb, chunk): (usize, usize),
        from: usize,
        lane: Lane,
    ) -> Result<(), ExecError> {
        let program = self.context.program;
        let shape = [program.batch.rows(mb).1 * program.batch.length, self.received_width(chunk, lane)];
        let received = self.context.receive(from, lane, trainer.weights.activation_dtype(), &shape)?;
        self.put(trainer, (mb, chunk), lane, received)
    }

    /// Takes the input of micro-batch `mb` (`Lane::Activation`), or the gradient of its output, as what was received.
    pub(super) fn put(
        &mut self,
        trainer: &Trainer,
        (mb, chunk): (usize, usize),
        lane: Lane,
        received: Tensor,
    ) -> Result<(), ExecError> {
        let received = trainer.models[chunk].unpacked(received, self.context.program.received_at(chunk, lane))?;
        let tensors = &mut self.tensors[chunk][mb];
        let slot = if lane == Lane::Activation { &mut tensors.input } else { &mut tensors.gradient };
        *slot = Some(received);
        Ok(())
    }

    /// Numbers of one position in a message.
    pub(super) fn received_width(&self, chunk: usize, lane: Lane) -> usize {
        let program = self.context.program;
        program.model.width_to(program.received_at(chunk, lane))
    }
}

/// The micro-batch, once its rows are loaded.
fn loaded(batches: &[Option<MicroBatch>], mb: usize) -> Result<&MicroBatch, ExecError> {
    batches[mb].as_ref().ok_or_else(|| ExecError::Program(format!("micro-batch {mb} has not been loaded")))
}

fn take_saved(tensors: &mut ChunkTensors, mb: usize) -> Result<Vec<SavedActivations>, ExecError> {
    let saved = tensors.saved.take();
    saved.ok_or_else(|| ExecError::Program(format!("backward of micro-batch {mb} before its forward")))
}
