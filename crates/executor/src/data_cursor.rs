//! The data of a rank, and its training rows in the order of training, which it can read one step ahead.

use std::collections::HashMap;

use super::error::ExecError;
use runner_data::{Dataset, ModelTokenizer, Prepared, Sampler, Split};
use runner_spec::data::{ChoiceItem, Rows};
use runner_spec::program::{Instruction, Program, RowSequence};

/// The data that a rank works with besides its program.
#[derive(Debug, Clone, Copy)]
pub struct Resources<'a> {
    pub dataset: &'a Dataset,
    pub tokenizer: &'a ModelTokenizer,
    /// The items of each task.
    pub tasks: &'a [(String, Vec<ChoiceItem>)],
}

impl<'a> From<&'a Prepared> for Resources<'a> {
    fn from(prepared: &'a Prepared) -> Self {
        let Prepared { dataset, tokenizer, tasks, .. } = prepared;
        Self { dataset, tokenizer, tasks }
    }
}

#[derive(Debug)]
pub(super) struct DataCursor<'a> {
    program: &'a Program,
    split: &'a Split,
    sampler: Sampler,
    sequence: RowSequence,
    /// Rows by step and micro-batch.
    prefetched: HashMap<(u64, usize), Rows>,
}

impl<'a> DataCursor<'a> {
    pub(super) fn new(program: &'a Program, split: &'a Split) -> Self {
        let rows = split.rows();
        let sequential = program.batch.order.sequential;
        let sampler = if sequential { Sampler::sequential(rows) } else { Sampler::new(program.seed.data, rows) };
        Self { program, split, sampler, sequence: program.batch.row_sequence(rows), prefetched: HashMap::new() }
    }

    /// Completed passes over the training rows after `steps` steps.
    pub(super) fn epochs_after(&self, steps: u64) -> f64 {
        self.sequence.epochs_after(steps)
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

    /// Reads the rows of `step` ahead, unless the stage ends before it, after `until` steps. Rows that cannot be read are left to `load_rows`,
    /// which reports the error.
    pub(super) fn prefetch_step(&mut self, step: u64, until: u64) {
        if step >= until {
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
        let pieces = batch.pieces.max(1) as u64;
        let sequences = (0..count as u64).map(|row| first as u64 + row * batch.stride as u64);
        let indices = sequences.clone().map(|sequence| {
            let (epoch, place) = self.sequence.place(step, sequence / pieces);
            self.sampler.row(epoch, place)
        });
        let mut rows = Rows::default();
        self.split.fill(indices, &mut rows)?;
        if pieces > 1 {
            rows.keep_pieces(batch.length, sequences.map(|sequence| (sequence % pieces) as usize));
        }
        if !batch.mask_padding {
            rows.filled.clear();
        }
        Ok(rows)
    }
}
