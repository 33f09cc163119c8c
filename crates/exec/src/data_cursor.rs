//! The training rows of a rank, in the order of training, which it can read one step ahead.

use std::collections::HashMap;

use super::error::ExecError;
use runner_data::{Sampler, Split};
use runner_spec::data::Rows;
use runner_spec::program::{Instruction, Program};

#[derive(Debug)]
pub(super) struct DataCursor<'a> {
    program: &'a Program,
    split: &'a Split,
    sampler: Sampler,
    /// Rows of an epoch that are trained on.
    epoch_rows: u64,
    /// Rows by step and micro-batch.
    prefetched: HashMap<(u64, usize), Rows>,
}

impl<'a> DataCursor<'a> {
    pub(super) fn new(program: &'a Program, split: &'a Split) -> Self {
        let (order, rows) = (program.batch.order, split.rows());
        let used = order.rows_used(rows, program.batch.sequences);
        let sampler = if order.sequential {
            Sampler::sequential(used)
        } else {
            Sampler::new(program.seed, rows).with_epoch_length(used)
        };
        Self { program, split, sampler, epoch_rows: used.max(1), prefetched: HashMap::new() }
    }

    /// Passes over the training rows that are done after `steps` steps.
    pub(super) fn epoch_after(&self, steps: u64) -> f64 {
        (steps * self.program.batch.sequences as u64) as f64 / self.epoch_rows as f64
    }

    /// The rows of micro-batch `mb` of `step`, which counts from 0.
    ///
    /// # Errors
    /// If the data cannot be read.
    pub(super) fn load_rows(&mut self, step: u64, mb: usize) -> Result<Rows, ExecError> {
        match self.prefetched.remove(&(step, mb)) {
            Some(rows) => Ok(rows),
            None => self.read_rows(step, mb),
        }
    }

    /// Reads the rows of `step` before they are needed. Rows that cannot be read are left to `load_rows`, which reports the error.
    pub(super) fn prefetch_step(&mut self, step: u64) {
        if step >= self.program.steps {
            return;
        }
        for instruction in &self.program.step {
            if let Instruction::Load { mb } = *instruction
                && let Ok(rows) = self.read_rows(step, mb)
            {
                self.prefetched.insert((step, mb), rows);
            }
        }
    }

    fn read_rows(&self, step: u64, mb: usize) -> Result<Rows, ExecError> {
        let batch = &self.program.batch;
        let (first, count) = batch.rows(mb);
        let position = step * batch.sequences as u64 + first as u64;
        let indices = (0..count as u64).map(|row| self.sampler.index(position + row * batch.stride as u64));
        let mut rows = Rows::default();
        self.split.fill(indices, &mut rows)?;
        if !batch.mask_padding {
            rows.filled.clear();
        }
        Ok(rows)
    }
}
