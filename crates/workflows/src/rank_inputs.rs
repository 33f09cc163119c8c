//! The data of a rank, and its first training state, which comes from a checkpoint, from weights, or from random draws. A rank runs in this
//! process or in a process that this one starts.

use std::path::Path;
use std::sync::Arc;

use rayon::ThreadPool;
use runner_compute::state::TrainState;
use runner_data::content_hash;
use runner_executor::{Resources, state_dtype};
use runner_inputs::{Host, IgnoreEvents, PreparedRun, RecordedInputs, initial_weights, prepare_rank_inputs};
use runner_ranks::{PreparedRank, RankInputs, RankProcess, RankStart};
use runner_spec::data::DataFacts;
use runner_spec::error::{CommandError, Context as _, Result};
use runner_spec::experiment::Experiment;
use runner_spec::model::InitialWeights;
use runner_spec::program::Program;
use runner_weights::OpenedWeights;

/// What the ranks of the run `ready` of `experiment` train with.
pub(crate) fn rank_inputs<'a>(ready: &'a PreparedRun, experiment: &'a Experiment, host: &'a Host) -> RankInputs<'a> {
    let plan = &ready.plan;
    RankInputs {
        plan,
        experiment,
        resources: Resources::from(&ready.prepared),
        pool: &ready.pool,
        load_state: Box::new(move |program, checkpoint| load_state(experiment, program, &plan.data, host, checkpoint)),
    }
}

/// Works as the rank of `process`. Returns the line for the rank's log if the rank did not reach its end.
///
/// # Errors
/// If no run started this process, or the parent has ended. Other errors are reported to the parent.
pub fn work_as_process(process: &RankProcess, host: &Host) -> Result<Option<String>> {
    process.work(|start, pool| prepare_rank(process, start, pool, host))
}

fn prepare_rank(process: &RankProcess, start: &RankStart, pool: &ThreadPool, host: &Host) -> Result<PreparedRank> {
    let RankStart { program, experiment, data, training, .. } = start;
    let checkpoint = training.checkpoint.as_deref();
    let recorded = || RecordedInputs::new(data.clone(), &process.run, experiment);
    let recorded_inputs = checkpoint.map(|_| recorded()).transpose()?;
    let prepared = prepare_rank_inputs(experiment, recorded_inputs.as_ref(), pool, host, &mut IgnoreEvents)?;
    if prepared.facts != *data {
        let message = "the data, or the weights to start from, changed since the run was started";
        return Err(CommandError::failure(message.to_owned()));
    }
    let state = pool.install(|| load_state(experiment, program, data, host, checkpoint))?;
    Ok((prepared, state))
}

/// The training state that the rank of `program` begins with, in the host's memory: that of `checkpoint`, or else that of step 0, drawn, or
/// read from the weights whose content hash is in `facts`.
///
/// # Errors
/// If the checkpoint or the initial weights cannot be read, the weights have changed, or memory is short.
fn load_state(
    experiment: &Experiment,
    program: &Program,
    facts: &DataFacts,
    host: &Host,
    checkpoint: Option<&Path>,
) -> Result<TrainState> {
    if let Some(path) = checkpoint {
        let layout = Arc::new(program.state_layout());
        let (moments, dtype) = (program.moments(), state_dtype(program));
        // The process that keeps the record has checked that it is a checkpoint of the run.
        return Ok(runner_ranks::saved_state::load_state(path, None, &layout, moments, dtype)?);
    }
    // The plan needed the weights too, so that nothing is left to download.
    let weights = initial_weights(experiment, host, &mut IgnoreEvents).context("the initial weights")?;
    let given = weights.as_ref().map(|weights| weights as &dyn InitialWeights);
    let state = runner_executor::initial_state(program, given)?;
    if let Some(weights) = &weights {
        check_unchanged(weights, facts, host.cache()?).context("the initial weights")?;
    }
    Ok(state)
}

/// # Errors
/// If the files of `weights` are not those whose hash is in `facts`. They are read again only if their size or time has changed.
fn check_unchanged(weights: &OpenedWeights, facts: &DataFacts, cache: &Path) -> Result<()> {
    let hash = content_hash(&weights.files, cache, &|_| {})?;
    if facts.weights.as_ref().is_some_and(|hashed| hashed.hash == hash) {
        return Ok(());
    }
    let file = weights.described.file.display();
    Err(CommandError::failure(format!("{file}: the weights of model.init.from changed after the run was planned")))
}

#[cfg(test)]
mod tests {
    use runner_spec::data::WeightsFacts;

    use super::*;

    #[test]
    fn weights_that_changed_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/hf/gpt2"));
        for name in ["config.json", "model.safetensors"] {
            std::fs::write(dir.path().join(name), std::fs::read(fixture.join(name)).unwrap()).unwrap();
        }
        let (weights, cache) = (OpenedWeights::open(dir.path()).unwrap(), dir.path().join("cache"));
        let hash = content_hash(&weights.files, &cache, &|_| {}).unwrap();
        let mut facts = runner_plan::testing::data();
        facts.weights = Some(WeightsFacts { hash, vocab_size: weights.vocab_size() });
        check_unchanged(&weights, &facts, &cache).unwrap();
        // One number of the last tensor.
        let mut bytes = std::fs::read(&weights.files[0]).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&weights.files[0], bytes).unwrap();
        let error = check_unchanged(&weights, &facts, &cache).unwrap_err().to_string();
        assert!(error.contains("changed after the run was planned"), "{error}");
    }
}
