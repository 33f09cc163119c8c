//! Evaluation under any layout of ranks: replicas divide the batches among them, and each batch passes through the stages.

use super::data_cursor::Resources;
use super::error::ExecError;
use super::non_finite;
use super::rank_context::RankContext;
use super::trainer::Trainer;
use crate::eval::{self, Batches, ChoiceBatches, LossBatches, indices_of_replica};
use runner_compute::model::Output;
use runner_compute::nn::MicroBatch;
use runner_spec::event::{EvaluatedRows, Evaluation};

/// Runs the program's evaluations that are due after the steps done. The result is the same on all ranks, in whatever layout.
pub(super) fn evaluate(
    context: RankContext<'_>,
    trainer: &Trainer,
    resources: &Resources<'_>,
) -> Result<(Evaluation, EvaluatedRows), ExecError> {
    let (program, step) = (context.program, trainer.state.step);
    let loss = program.eval.loss.filter(|_| program.eval.is_loss_due(step, program.steps));
    let loss = loss.zip(resources.dataset.validation.as_ref()).map(|(spec, split)| {
        // In every stage the same batches.
        let micro_batch = context.run.batch.micro_batch;
        LossBatches::new(split, spec.rows(micro_batch), micro_batch, program.batch.mask_padding)
    });
    let due: Vec<String> = program
        .eval
        .tasks()
        .into_iter()
        .filter(|task| task.is_due(step, program.steps))
        .map(|task| task.name)
        .collect();
    let tasks = resources.tasks.iter().filter(|(name, _)| due.contains(name));
    let tasks = tasks.map(|(name, items)| (name.as_str(), ChoiceBatches::new(items, program.model.context_length)));
    match eval::evaluate(step, loss, tasks, |batches| run_batches(context, trainer, batches)) {
        // All ranks have the same result, so all of them take part in the election. An empty finding says that this rank's weights are
        // finite.
        Err(ExecError::ResultNotFinite(what)) => {
            let finding = non_finite::find_in_weights(trainer)?.unwrap_or_default();
            let first = context.elect_fault_report(&finding, "the logits")?;
            Err(ExecError::NotFinite { step, what, first })
        }
        result => result,
    }
}

/// Runs the batches of this rank's replica, and adds up the results of all ranks.
fn run_batches(context: RankContext<'_>, trainer: &Trainer, batches: &dyn Batches) -> Result<Vec<f64>, ExecError> {
    let indices = indices_of_replica(batches.count(), context.replica, context.program.mesh.replicas);
    let own = eval::run_batches(batches, indices, &trainer.models[0], |mb| run_chunks(context, trainer, mb))?;
    if context.is_alone() {
        return Ok(own);
    }
    let mut sums = vec![0.0; own.len()];
    for values in context.gather_numbers(&own)? {
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    Ok(sums)
}

/// Runs one batch through this rank's chunks. Returns the losses if one of them has the head.
fn run_chunks(context: RankContext<'_>, trainer: &Trainer, mb: &MicroBatch) -> Result<Option<Vec<f32>>, ExecError> {
    context.monitor.heartbeat();
    let mut losses = None;
    for (chunk, model) in trainer.models.iter().enumerate() {
        let shape = [mb.batch * mb.seq, context.program.model.width_to(model.range.start)];
        let input = context.receive_chunk_input(chunk, trainer.weights.activation_dtype(), &shape)?;
        let input = input.map(|packed| model.unpacked(packed, model.range.start)).transpose()?;
        match model.evaluate(&trainer.weights, input, mb)? {
            Output::Hidden(hidden) => context.send_chunk_output(chunk, &hidden.packed()?)?,
            Output::Losses(output) => losses = Some(output.read()?),
        }
    }
    Ok(losses)
}
