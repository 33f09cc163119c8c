//! One rank of a run, as a process that the run's own process starts.

use std::error::Error;
use std::iter;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::failure::{RankError, describe_place};
use super::hang_detector::rank_to_blame;
use super::parent::{Parent, ParentLink, start_heartbeat};
use super::protocol::{FailureKind, FromRank, RankCompletion, RankStart, ReportedFailure};
use super::rank_observer::RankObserver;
use super::rank_training::{RankTraining, connect_rank};
use crate::error::{EngineError, error_text};
use crate::observer::IgnoreEvents;
use crate::prepare::{Host, RecordedInputs, load_state, prepare_rank_inputs, thread_pool, training_resources};
use runner_comm::{CommError, Region};
use runner_compute::state::TrainState;
use runner_exec::eval::EvalError;
use runner_exec::{ExecError, Resources, TrainedRank};
use runner_machine::host::peak_rss_bytes;
use runner_record::run_dir::CHECKPOINTS;
use runner_spec::topology::LocalRanks;

/// The arguments with which the process that starts a rank calls this program.
#[derive(Debug, Clone)]
pub struct RankProcess {
    /// The run directory, which the parent holds.
    pub run: PathBuf,
    pub rank: usize,
    /// The descriptor of the memory that the ranks share.
    pub shared_memory: RawFd,
}

impl RankProcess {
    /// Works as this rank, under the parent at the other end of standard input and output. Returns the line for the rank's log if
    /// the rank did not reach its end.
    ///
    /// # Errors
    /// If no run started this process, or the parent has ended. Other errors are reported to the parent.
    pub fn work(&self, host: &Host) -> Result<Option<String>, EngineError> {
        let connected = Parent::connect(self.rank).map_err(EngineError::io("listening to the run"))?;
        let Some((mut parent, start)) = connected else {
            return Err(EngineError::Request("a rank is started by `runner apply`".to_owned()));
        };
        let (result, region) = match Region::attach(self.shared_memory, &start.topology()) {
            Ok(region) => {
                let trained = self.train(&mut parent, &start, &region, host).inspect_err(|_| region.abort(self.rank));
                (trained, Some(region))
            }
            Err(error) => (Err(EngineError::Other(error.to_string())), None),
        };
        let (message, line) = match result {
            Ok(done) => (FromRank::Done(done), None),
            Err(error) => {
                let by = region.as_ref().and_then(|region| region.aborted());
                let failure = report_failure(&error, by);
                let status = region.as_ref().and_then(|region| region.snapshot(self.rank)).unwrap_or_default();
                let place = describe_place(&start.program, &status);
                let line = match by.filter(|_| failure.kind == FailureKind::Aborted) {
                    Some(rank) if rank < start.program.world_size() => format!("ended {place} because of rank {rank}"),
                    Some(_) => format!("ended {place} because the run's record could not be kept"),
                    None => format!("failed {place}: {}", failure.text),
                };
                (FromRank::Failed(failure), Some(line))
            }
        };
        // If the parent has ended too, nothing but the log is left of the rank.
        let action = line.clone().unwrap_or_else(|| "reporting to the run".to_owned());
        Parent::send(&message).map_err(EngineError::io(action))?;
        Ok(line)
    }

    /// Trains while a thread shows the parent and the other ranks that this rank is alive.
    fn train(
        &self,
        parent: &mut Parent,
        start: &RankStart,
        region: &Arc<Region>,
        host: &Host,
    ) -> Result<RankCompletion, EngineError> {
        let RankStart { program, plan_hash, experiment, data, threads, training, faults, .. } = start;
        start_heartbeat(region.clone(), self.rank).map_err(EngineError::io("starting the heartbeat"))?;
        faults.before_data();
        let pool = thread_pool(threads.clone())?;
        let recorded = || RecordedInputs::new(data.clone(), &self.run, experiment);
        let recorded_inputs = training.checkpoint.as_ref().map(|_| recorded()).transpose()?;
        let prepared = prepare_rank_inputs(experiment, recorded_inputs.as_ref(), &pool, host, &mut IgnoreEvents)?;
        if prepared.facts != *data {
            let message = "the data, or the weights to start from, changed since the run was started";
            return Err(EngineError::Other(message.to_owned()));
        }
        let checkpoint = training.checkpoint.as_deref();
        let state = pool.install(|| load_state(experiment, program, plan_hash, data, host, checkpoint))?;
        let resources = training_resources(&prepared);
        let outcome = pool.install(|| self.run_program(parent, start, region, &resources, state))?;
        Ok(RankCompletion { interrupted: outcome.interrupted, peak_rss_bytes: peak_rss_bytes() })
    }

    /// Runs the rank's program to its end in the current thread pool. If the rank fails, the run is aborted before this returns.
    fn run_program(
        &self,
        parent: &mut Parent,
        start: &RankStart,
        region: &Arc<Region>,
        resources: &Resources<'_>,
        state: TrainState,
    ) -> Result<TrainedRank, ExecError> {
        let RankStart { program, training, faults, .. } = start;
        let (comm, status) =
            connect_rank(region, program, faults, LocalRanks::Processes).map_err(ExecError::Program)?;
        let controls = training.controls(region.stop());
        let training = RankTraining { program, resources, comm: &*comm, status, mesh: None, faults, controls };
        let mut link = ParentLink { parent, region, status };
        let checkpoints = &self.run.join(CHECKPOINTS);
        let mut observer = RankObserver { training: &training, checkpoints, link: &mut link };
        let result = catch_unwind(AssertUnwindSafe(|| training.run(state, &mut observer)));
        // Before the communicator is dropped: ranks that wait for this one would report that it has left.
        match &result {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => region.abort(self.failed_rank(error, region)),
            Err(_) => region.abort(self.rank),
        }
        result.unwrap_or_else(|panic| resume_unwind(panic)).map_err(|error| error.source)
    }

    /// The rank because of which this one failed with `error`, while the other ranks still wait.
    fn failed_rank(&self, error: &RankError, region: &Region) -> usize {
        let peer = timed_out_peer(&error.source);
        peer.map_or(self.rank, |(peer, _)| rank_to_blame(self.rank, peer, |r| region.snapshot(r)?.waiting_for))
    }
}

/// The rank that a rank waited for until the timeout, and how long it waited, if that is what `error` says.
fn timed_out_peer(error: &ExecError) -> Option<(usize, Duration)> {
    match error {
        ExecError::Peer(CommError::Timeout { peer, waited, .. })
        | ExecError::Eval(EvalError::Peer(CommError::Timeout { peer, waited, .. })) => Some((*peer, *waited)),
        _ => None,
    }
}

/// The report of `error`, where `by` is the rank because of which the run was aborted.
fn report_failure(error: &(dyn Error + 'static), by: Option<usize>) -> ReportedFailure {
    let mut causes = iter::successors(Some(error), |cause| (**cause).source());
    let cause = causes.find_map(|cause| cause.downcast_ref::<ExecError>());
    let kind = match (cause, cause.and_then(timed_out_peer)) {
        (Some(error), _) if error.is_aborted() => FailureKind::Aborted,
        (Some(ExecError::NotFinite { .. }), _) => FailureKind::NotFinite,
        (_, Some((peer, waited))) => FailureKind::TimedOut { peer: by.unwrap_or(peer), seconds: waited.as_secs() },
        _ => FailureKind::Other,
    };
    ReportedFailure { kind, text: error_text(error) }
}
