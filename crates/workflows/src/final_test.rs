//! `eval.test`: after the last step, the checkpoint with the best validation loss is measured on text that nothing was chosen by.

use runner_executor::eval::{LossBatches, run_all_batches};
use runner_record::CheckpointChoice;
use runner_record::summary::TestResult;
use runner_spec::experiment::{DeviceChoice, Experiment};

use crate::evaluated_model::EvaluatedModel;
use crate::opened_run::OpenedRun;
use crate::recording::Recording;
use runner_inputs::{Host, PreparedRun, RunEvent};
use runner_spec::error::{CommandError, Result};

/// Tests the run that `recording` records, whose steps are all done, the first `inherited_steps` by other runs; `None` where the experiment names no test.
///
/// # Errors
/// If there is no checkpoint that can be read, or its loss is not finite.
pub(crate) fn test_best_checkpoint(
    experiment: &Experiment,
    ready: &PreparedRun,
    inherited_steps: u64,
    host: &Host,
    recording: &mut Recording<'_>,
) -> Result<Option<TestResult>> {
    let Some(split) = &ready.prepared.dataset.test else { return Ok(None) };
    let run = OpenedRun { path: recording.path.clone(), plan: ready.plan.clone(), experiment: experiment.clone() };
    let (batch, rows) = (run.program()?.batch.clone(), run.program()?.eval.test_rows);
    let mut notes = Vec::new();
    let tested_model = EvaluatedModel::of_run(run, CheckpointChoice::Best, None)?;
    let device = tested_model.device(DeviceChoice::Auto, host.threads, &mut notes)?;
    for note in &notes {
        recording.observer.observe(&RunEvent::Note(note));
    }
    let tested = ready.pool.install(|| -> Result<TestResult> {
        let (model, weights, step) = tested_model.load(device)?;
        let all = LossBatches::new(split, rows.unwrap_or(u64::MAX), batch.micro_batch, batch.mask_padding);
        let result = all.finish(&run_all_batches(&all, &model, &weights)?)?;
        Ok(TestResult {
            step: step.ok_or_else(|| CommandError::failure("a tested checkpoint has no step".to_owned()))?,
            loss: result.loss,
            perplexity: result.perplexity(),
            bits_per_byte: result.bits_per_byte(),
            tokens: result.tokens,
            rows: result.rows,
            standard_error: result.standard_error,
        })
    })?;
    let text = format!("test loss {}", tested.text(tested.step <= inherited_steps));
    recording.log.line(&text)?;
    recording.observer.observe(&RunEvent::Note(&text));
    Ok(Some(tested))
}
