//! Reading, forward and backward of micro-batches, and the messages between them.

use candle_core::Tensor;

use super::diagnose;
use super::error::ExecError;
use super::rank::Rank;
use runner_compute::kernels::loss::sum_there;
use runner_compute::kernels::on_host;
use runner_compute::model::Output;
use runner_compute::nn::MicroBatch;
use runner_spec::data::Rows;
use runner_spec::program::{Blocks, Instruction};
use runner_spec::topology::Lane;

impl Rank<'_> {
    pub(super) fn load(&mut self, mb: usize) -> Result<(), ExecError> {
        let rows = match self.ahead.remove(&(self.at, mb)) {
            Some(rows) => rows,
            None => self.rows(self.at, mb)?,
        };
        self.step.own_tokens += rows.valid();
        self.step.cells.rows[mb] = Some(rows);
        Ok(())
    }

    /// Reads the rows of the next step while a GPU computes. What cannot be read is told when it is wanted.
    pub(super) fn read_ahead(&mut self) {
        let next = self.at + 1;
        if self.trainer.device().is_cpu() || next >= self.program.steps {
            return;
        }
        for instruction in &self.program.step {
            let Instruction::Load { mb } = *instruction else { continue };
            if let Ok(rows) = self.rows(next, mb) {
                self.ahead.insert((next, mb), rows);
            }
        }
    }

    /// The rows of a micro-batch of step `at`.
    fn rows(&self, at: u64, mb: usize) -> Result<Rows, ExecError> {
        let (first, count) = self.program.batch.rows(mb);
        let position = at * self.program.batch.sequences as u64 + first as u64;
        let mut rows = Rows::default();
        let stride = self.program.batch.stride as u64;
        let indices = (0..count as u64).map(|row| self.sampler.index(position + row * stride));
        self.resources.dataset.train().fill(indices, &mut rows)?;
        if !self.program.batch.mask_padding {
            rows.filled.clear();
        }
        Ok(rows)
    }

    /// The micro-batch as layers are told of it; made at its first forward, when the weight of its tokens is known.
    fn prepare(&mut self, mb: usize) -> Result<(), ExecError> {
        if self.step.cells.batches[mb].is_some() {
            return Ok(());
        }
        let Some(rows) = self.step.cells.rows[mb].take() else {
            return Err(ExecError::Program(format!("forward of micro-batch {mb} before its load")));
        };
        let batch = MicroBatch {
            step: self.at,
            first_sample: self.program.batch.rows(mb).0 as u64,
            sample_stride: self.program.batch.stride as u64,
            scale: 1.0 / self.step.tokens.max(1) as f64,
            training: true,
            ..self.trainer.models[0].micro_batch(&rows.inputs, rows.targets, rows.length)?.masked(&rows.filled)?
        };
        self.step.cells.batches[mb] = Some(batch);
        Ok(())
    }

    pub(super) fn forward(&mut self, mb: usize, chunk: usize) -> Result<(), ExecError> {
        self.prepare(mb)?;
        let input = self.step.cells.cell(mb, chunk).input.take();
        let batch = self.step.cells.batch(mb)?;
        // A copy of the handle, to run the forward again if it goes wrong.
        let again = input.clone();
        let (output, saved) = match &mut self.trace {
            None => self.trainer.forward(chunk, input, batch)?,
            Some(trace) => {
                let mut seen = |block: usize, output: &Tensor| trace.output(mb, block, output);
                self.trainer.forward_seen(chunk, input, batch, &mut seen)?
            }
        };
        let head = self.program.model.layers + 1;
        match (&mut self.trace, &output) {
            (Some(trace), Output::Losses(losses)) => trace.losses(mb, head, losses),
            (Some(trace), Output::Unread(losses)) => trace.losses(mb, head, &on_host(losses)?.to_vec1::<f32>()?),
            _ => {}
        }
        match output {
            Output::Hidden(hidden) => {
                let cell = self.step.cells.cell(mb, chunk);
                (cell.output, cell.saved) = (Some(hidden), Some(saved));
            }
            Output::Losses(losses) => {
                let loss = losses.iter().copied().map(f64::from).sum::<f64>();
                if !loss.is_finite() {
                    let first = diagnose::forward(&self.trainer, chunk, again, batch)?;
                    return Err(ExecError::NotFinite { step: self.at + 1, what: "loss", first });
                }
                self.step.loss += loss;
                self.step.cells.cell(mb, chunk).saved = Some(saved);
            }
            Output::Unread(losses) => {
                self.step.cells.unread.push((mb, sum_there(&losses)?));
                self.step.cells.cell(mb, chunk).saved = Some(saved);
            }
        }
        Ok(())
    }

    /// Adds up the losses that a GPU still held: where a step waits for it.
    pub(super) fn read_losses(&mut self) -> Result<(), ExecError> {
        for (mb, losses) in std::mem::take(&mut self.step.cells.unread) {
            let loss = losses.read()?;
            if !loss.is_finite() {
                self.still_running()?;
                let chunk = self.program.chunks.len() - 1;
                // What another stage sent is gone; the chunk's own blocks can be looked at from the ids on.
                let first = if self.program.chunks[chunk].start == 0 {
                    diagnose::forward(&self.trainer, chunk, None, self.step.cells.batch(mb)?)?
                } else {
                    diagnose::weights(&self.trainer)?.unwrap_or_else(|| "the losses".to_owned())
                };
                return Err(ExecError::NotFinite { step: self.at + 1, what: "loss", first });
            }
            self.step.loss += loss;
        }
        Ok(())
    }

    pub(super) fn backward(&mut self, mb: usize, chunk: usize, blocks: Option<Blocks>) -> Result<(), ExecError> {
        let whole = self.program.chunks[chunk];
        let blocks = blocks.unwrap_or(whole);
        let cell = self.step.cells.cell(mb, chunk);
        let (Some(mut saved), dy) = (cell.saved.take(), cell.gradient.take()) else {
            return Err(ExecError::Program(format!("backward of micro-batch {mb} before its forward")));
        };
        let batch = self.step.cells.batch(mb)?;
        let dx = self.trainer.backward(chunk, &mut saved, dy, batch, blocks.range())?;
        let cell = self.step.cells.cell(mb, chunk);
        cell.gradient = dx;
        if blocks.start > whole.start {
            cell.saved = Some(saved);
        }
        Ok(())
    }

    pub(super) fn backward_input(&mut self, mb: usize, chunk: usize) -> Result<(), ExecError> {
        let cell = self.step.cells.cell(mb, chunk);
        let (Some(saved), dy) = (cell.saved.take(), cell.gradient.take()) else {
            return Err(ExecError::Program(format!("backward of micro-batch {mb} before its forward")));
        };
        let batch = self.step.cells.batch(mb)?;
        let (dx, work) = self.trainer.backward_input(chunk, saved, dy, batch)?;
        let cell = self.step.cells.cell(mb, chunk);
        (cell.gradient, cell.work) = (dx, Some(work));
        Ok(())
    }

    pub(super) fn backward_weight(&mut self, mb: usize, chunk: usize, blocks: Option<Blocks>) -> Result<(), ExecError> {
        let whole = self.program.chunks[chunk];
        let blocks = blocks.unwrap_or(whole);
        let Some(mut work) = self.step.cells.cell(mb, chunk).work.take() else {
            return Err(ExecError::Program(format!("weight gradients of micro-batch {mb} before its input gradient")));
        };
        let batch = self.step.cells.batch(mb)?;
        self.trainer.backward_weight(chunk, &mut work, batch, blocks.range())?;
        if blocks.start > whole.start {
            self.step.cells.cell(mb, chunk).work = Some(work);
        }
        Ok(())
    }

    pub(super) fn send_activation(&mut self, mb: usize, chunk: usize, to: usize) -> Result<(), ExecError> {
        let output = self.step.cells.cell(mb, chunk).output.take();
        self.links.send(to, Lane::Activation, &there(output, mb)?)
    }

    pub(super) fn send_gradient(&mut self, mb: usize, chunk: usize, to: usize) -> Result<(), ExecError> {
        let gradient = self.step.cells.cell(mb, chunk).gradient.take();
        self.links.send(to, Lane::Gradient, &there(gradient, mb)?)
    }

    pub(super) fn receive_activation(&mut self, mb: usize, chunk: usize, from: usize) -> Result<(), ExecError> {
        let input =
            self.links.receive(from, Lane::Activation, self.trainer.weights.flat.dtype(), &self.hidden_shape(mb))?;
        self.step.cells.cell(mb, chunk).input = Some(input);
        Ok(())
    }

    pub(super) fn receive_gradient(&mut self, mb: usize, chunk: usize, from: usize) -> Result<(), ExecError> {
        let gradient =
            self.links.receive(from, Lane::Gradient, self.trainer.weights.flat.dtype(), &self.hidden_shape(mb))?;
        self.step.cells.cell(mb, chunk).gradient = Some(gradient);
        Ok(())
    }

    /// [rows·length, d_model] of micro-batch `mb`.
    fn hidden_shape(&self, mb: usize) -> [usize; 2] {
        let (_, rows) = self.program.batch.rows(mb);
        [rows * self.program.batch.length, self.program.model.d_model]
    }
}

fn there(tensor: Option<Tensor>, mb: usize) -> Result<Tensor, ExecError> {
    tensor.ok_or_else(|| ExecError::Program(format!("nothing to send of micro-batch {mb}")))
}
