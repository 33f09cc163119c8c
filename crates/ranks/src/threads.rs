//! Ranks as threads of one process: those of dp, or a run's only rank. Rank 0 holds the whole training state, so the recorder is its
//! observer, and no protocol stands between them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::failure::{RankError, describe_place};
use super::rank_training::{RankTraining, connect_rank};
use runner_comm::Region;
use runner_compute::state::TrainState;
use runner_executor::{ExecError, IgnoreEvents, Observer, Resources, RunControls, TrainedRank};
use runner_plan::ranks::topology::topology;
use runner_spec::program::Program;
use runner_threads::threads;

/// One rank of a run in this process.
#[derive(Debug)]
pub struct ThreadRank<'a> {
    pub program: &'a Program,
    pub threads: usize,
    pub state: TrainState,
}

/// Runs all ranks to their end. `observer` receives the events of rank 0; `slots` is the number of messages that a channel
/// holds.
///
/// # Errors
/// The error of the rank that failed first, when all ranks have ended.
pub fn run<'a>(
    ranks: Vec<ThreadRank<'_>>,
    slots: usize,
    resources: &Resources<'_>,
    controls: impl Into<RunControls<'a>>,
    observer: &mut (dyn Observer + Send),
) -> Result<Vec<TrainedRank>, RankError> {
    let controls = controls.into();
    let Some(first) = ranks.first() else { return Ok(Vec::new()) };
    // Activations have at most the size of f32, or that of f64 state.
    let element = first.state.buffer.dtype().size_in_bytes().max(size_of::<f32>());
    let topology = topology(first.program, slots, element);
    let region = Region::anonymous(&topology).map_err(|error| start_error(0, &error))?;
    let mut observer = Some(observer);
    let work = |rank| {
        let ThreadRank { program, .. } = rank;
        let (region, number, observer) = (&region, program.rank, observer.take());
        move || {
            let mut ignore = IgnoreEvents;
            let observer: &mut (dyn Observer + Send) = match observer {
                Some(observer) => observer,
                None => &mut ignore,
            };
            // A panic must not leave the other ranks waiting.
            let work = AssertUnwindSafe(|| run_rank(rank, region, resources, controls, observer));
            let result = catch_unwind(work).unwrap_or_else(|_| {
                let place = describe_place(program, &region.snapshot(number).unwrap_or_default());
                Err(RankError { rank: number, place, source: ExecError::Program("it panicked".to_owned()) })
            });
            if result.is_err() {
                region.abort(number);
            }
            result
        }
    };
    let ended = threads::run_together("rank", ranks.into_iter().map(work).collect());
    let ended = ended.map_err(|error| start_error(0, &error))?.into_iter().enumerate();
    let results = ended.map(|(rank, result)| result.unwrap_or_else(|| Err(start_error(rank, &"its thread panicked"))));
    let (outcomes, mut errors): (Vec<_>, Vec<_>) = results.partition(Result::is_ok);
    // Errors of ranks that were aborted because of another rank come last.
    errors.sort_by_key(|result| result.as_ref().is_err_and(|error| error.source.is_aborted()));
    errors.into_iter().chain(outcomes).collect()
}

fn start_error(rank: usize, error: &dyn std::fmt::Display) -> RankError {
    RankError { rank, place: "while starting".to_owned(), source: ExecError::Program(error.to_string()) }
}

fn run_rank(
    rank: ThreadRank<'_>,
    region: &Arc<Region>,
    resources: &Resources<'_>,
    controls: RunControls<'_>,
    observer: &mut (dyn Observer + Send),
) -> Result<TrainedRank, RankError> {
    let ThreadRank { program, threads, state } = rank;
    let error = |error: &dyn std::fmt::Display| start_error(program.rank, error);
    let (comm, status) = connect_rank(region, program).map_err(|e| error(&e))?;
    let pool = threads::thread_pool(threads).map_err(|e| error(&e))?;
    let training = RankTraining { program, resources, comm: &*comm, status, mesh: None, controls };
    pool.install(|| training.run(state, observer))
}
