//! Evaluation under any layout: batches are divided among replicas, and go through the stages of each.

use std::time::Instant;

use super::diagnose;
use super::error::ExecError;
use super::rank::Rank;
use crate::eval::batches::{Batches, Partial};
use crate::eval::choice::ChoiceBatches;
use crate::eval::loss::LossBatches;
use crate::eval::{EvalError, share};
use runner_compute::kernels::on_host;
use runner_compute::model::Output;
use runner_spec::data::Rows;
use runner_spec::event::Best;
use runner_spec::event::{EvalMetrics, Event};
use runner_spec::topology::Lane;

impl Rank<'_> {
    pub(super) fn evaluate(&mut self) -> Result<(), ExecError> {
        let started = Instant::now();
        let step = self.trainer.state.step;
        let mut metrics = EvalMetrics { step, ..EvalMetrics::default() };
        if let (Some(spec), Some(split)) = (self.program.eval.loss, self.resources.dataset.validation()) {
            let batches = LossBatches::new(split, spec.batches, self.program.batch.micro_batch)
                .masked(self.program.batch.mask_padding);
            let partial = self.all_batches(&batches)?;
            let result = self.finite(batches.finish(&partial))?;
            metrics.val_loss = Some(result.loss);
            metrics.val_perplexity = Some(result.perplexity());
        }
        if let (Some(_), Some(items)) = (self.program.eval.choice_items, self.resources.choice) {
            let batches = ChoiceBatches::new(items, self.program.model.context_length);
            let partial = self.all_batches(&batches)?;
            let score = self.finite(batches.finish(&partial))?;
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

    /// This rank's part of `all`, then everyone's results together: the same on all ranks, in whatever layout.
    fn all_batches(&mut self, all: &dyn Batches) -> Result<Partial, ExecError> {
        let mut mine = all.partial();
        for index in share(all.count(), self.links.replica, self.links.mesh.replicas) {
            self.monitor.alive();
            self.batch(all, index, &mut mine)?;
        }
        if self.links.mesh.world_size() == 1 {
            return Ok(mine);
        }
        let mut sum = all.partial();
        for values in self.links.gather_numbers(&mine.values)? {
            sum.merge(&Partial { values })?;
        }
        Ok(sum)
    }

    /// One batch through this rank's chunks.
    fn batch(&mut self, all: &dyn Batches, index: usize, partial: &mut Partial) -> Result<(), ExecError> {
        let mut rows = Rows::default();
        all.fill(index, &mut rows)?;
        let stages = self.links.mesh.stages;
        let shape = [rows.inputs.len(), self.program.model.d_model];
        let dtype = self.trainer.weights.flat.dtype();
        let mb = self.trainer.models[0]
            .micro_batch(&rows.inputs, rows.targets.clone(), rows.length)?
            .masked(&rows.filled)?;
        for (chunk, model) in self.trainer.models.iter().enumerate() {
            let part = self.program.virtual_stage(chunk);
            let input = match part.checked_sub(1) {
                Some(before) => Some(self.links.receive(before % stages, Lane::Activation, dtype, &shape)?),
                None => None,
            };
            match model.evaluate(&self.trainer.weights, input, &mb)? {
                Output::Hidden(hidden) => self.links.send((part + 1) % stages, Lane::Activation, &hidden)?,
                Output::Losses(losses) => all.enter(index, &rows, &losses, partial)?,
                Output::Unread(losses) => all.enter(index, &rows, &on_host(&losses)?.to_vec1()?, partial)?,
            }
        }
        Ok(())
    }

    /// An evaluation's result; one that is not finite stops the run, with the tensor that went bad.
    fn finite<T>(&self, result: Result<T, EvalError>) -> Result<T, ExecError> {
        let Err(EvalError::NotFinite(what)) = result else { return Ok(result?) };
        // All ranks have the same result, so all come here.
        let mine = diagnose::weights(&self.trainer)?.unwrap_or_default();
        let first = self.links.first_found(&mine, "the logits")?;
        Err(ExecError::NotFinite { step: self.trainer.state.step, what, first })
    }
}
