//! One rank of a run, as a process that the run's own process starts.

use rayon::ThreadPool;
use runner_launch::{PreparedRank, RankProcess, RankProcessError, RankStart};

use crate::host::Host;
use crate::observer::IgnoreEvents;
use crate::prepare::{RecordedInputs, load_state, prepare_rank_inputs};
use crate::run_error::RunError;
use runner_spec::error::CommandError;

/// Works as the rank of `process`. Returns the line for the rank's log if the rank did not reach its end.
///
/// # Errors
/// If no run started this process, or the parent has ended. Other errors are reported to the parent.
pub fn work_as_process(process: &RankProcess, host: &Host) -> Result<Option<String>, RankProcessError> {
    process.work(|start, pool| Ok(prepare_rank(process, start, pool, host)?))
}

fn prepare_rank(
    process: &RankProcess,
    start: &RankStart,
    pool: &ThreadPool,
    host: &Host,
) -> Result<PreparedRank, CommandError> {
    let RankStart { program, plan_hash, experiment, data, training, .. } = start;
    let checkpoint = training.checkpoint.as_deref();
    let recorded = || RecordedInputs::new(data.clone(), &process.run, experiment);
    let recorded_inputs = checkpoint.map(|_| recorded()).transpose()?;
    let prepared = prepare_rank_inputs(experiment, recorded_inputs.as_ref(), pool, host, &mut IgnoreEvents)?;
    if prepared.facts != *data {
        let message = "the data, or the weights to start from, changed since the run was started";
        return Err(CommandError::failure(message.to_owned()));
    }
    let state = pool.install(|| load_state(experiment, program, plan_hash, data, host, checkpoint));
    Ok(PreparedRank { data: prepared, state: state.map_err(RunError::from)? })
}
