//! `eval.test`: after the last step, the best checkpoint by validation loss on text that nothing was chosen by.

use std::path::Path;

use anyhow::Context as _;

use super::opened::OpenedRun;
use super::ready::Ready;
use super::watch::Watch;
use runner_exec::eval::loss::LossBatches;
use runner_spec::experiment::DeviceChoice;
use runner_spec::experiment::Experiment;
use runner_store::CheckpointChoice;
use runner_store::summary::TestResult;

/// Tests the run `path`, whose steps are all done; nothing where the experiment names no test.
///
/// # Errors
/// If there is no checkpoint that can be read, or its loss is not finite.
pub(super) fn test(
    experiment: &Experiment,
    ready: &Ready,
    path: &Path,
    watch: &mut Watch,
) -> anyhow::Result<Option<TestResult>> {
    let Some(split) = ready.prepared.dataset.test() else { return Ok(None) };
    let run = OpenedRun { path: path.to_owned(), plan: ready.plan.clone(), experiment: experiment.clone() };
    let batch = run.program()?.batch.clone();
    let mut notes = Vec::new();
    let device = run.device(DeviceChoice::Auto, ready.pool.current_num_threads(), &mut notes)?;
    for note in &notes {
        watch.screen.line(note);
    }
    let tested = ready.pool.install(|| -> anyhow::Result<TestResult> {
        let (model, weights, step) = run.model(CheckpointChoice::Best, device)?;
        let all = LossBatches::new(split, usize::MAX, batch.micro_batch).masked(batch.mask_padding);
        let result = all.measure(&model, &weights)?;
        Ok(TestResult { step, loss: result.loss, perplexity: result.perplexity(), tokens: result.tokens })
    })?;
    let words = format!(
        "test loss {:.4}  perplexity {:.2}  (checkpoint of step {})",
        tested.loss, tested.perplexity, tested.step
    );
    watch.log.line(&words).context("the log")?;
    watch.screen.line(&words);
    Ok(Some(tested))
}
