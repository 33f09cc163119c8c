//! One rank of a run, as a process that the run's own process starts.

use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::error::LaunchError;
use super::failure::{RankError, describe_place};
use super::faults;
use super::hang_detector::rank_to_blame;
use super::parent::{Parent, ParentLink, start_heartbeat};
use super::protocol::{FailureKind, FromRank, RankCompletion, RankStart, ReportedFailure};
use super::rank_observer::RankObserver;
use super::rank_training::{RankTraining, connect_rank};
use rayon::ThreadPool;
use runner_comm::{CommError, Region};
use runner_compute::state::TrainState;
use runner_data::Prepared;
use runner_executor::{ExecError, Resources, TrainedRank};
use runner_machine::host::peak_rss_bytes;
use runner_record::run_dir::CHECKPOINTS;
use runner_threads::stop::StopReason;
use runner_threads::threads::thread_pool;

use runner_spec::error::{Classified as _, CommandError, Context as _, ErrorKind, Result};

/// The data of a rank, and the training state that it begins with.
pub type PreparedRank = (Prepared, TrainState);

/// The arguments with which the process that starts a rank calls this program.
#[derive(Debug, Clone)]
pub struct RankProcess {
    /// The run directory, which the parent holds.
    pub run: PathBuf,
    pub rank: usize,
    /// The descriptor of the memory that the ranks share.
    pub shared_memory: RawFd,
    /// True once a scheduler's notice has reached this process alone. Then all ranks stop.
    pub stop: Arc<AtomicBool>,
}

impl RankProcess {
    /// Works as this rank, under the parent at the other end of standard input and output, with what `prepare` reads in a pool of threads.
    /// Returns the line for the rank's log if the rank did not reach its end.
    ///
    /// # Errors
    /// If no run started this process, or the parent has ended. Other errors are reported to the parent.
    pub fn work(
        &self,
        prepare: impl FnOnce(&RankStart, &ThreadPool) -> Result<PreparedRank>,
    ) -> Result<Option<String>> {
        let Some((mut parent, start)) = Parent::connect(self.rank).context("listening to the run")? else {
            return Err(CommandError::request("a rank is started by `runner apply`"));
        };
        let (result, region) = match Region::attach(self.shared_memory, &start.topology()) {
            Ok(region) => {
                let trained =
                    self.train(&mut parent, &start, &region, prepare).inspect_err(|_| region.abort(self.rank));
                (trained, Some(region))
            }
            Err(error) => (Err(CommandError::from(error).into()), None),
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
        Parent::send(&message).context(action)?;
        Ok(line)
    }

    /// Trains while a thread shows the parent and the other ranks that this rank is alive.
    fn train(
        &self,
        parent: &mut Parent,
        start: &RankStart,
        region: &Arc<Region>,
        prepare: impl FnOnce(&RankStart, &ThreadPool) -> Result<PreparedRank>,
    ) -> Result<RankCompletion, LaunchError> {
        let heartbeat = start_heartbeat(region.clone(), self.rank, Arc::clone(&self.stop));
        heartbeat.map_err(CommandError::io("starting the heartbeat"))?;
        faults::before_data();
        let pool = thread_pool(start.threads).map_err(CommandError::from)?;
        let (data, state) = prepare(start, &pool)?;
        let resources = Resources::from(&data);
        let outcome = pool.install(|| self.run_program(parent, start, region, &resources, state))?;
        let stop_reason = self.stop.load(Ordering::Relaxed).then_some(StopReason::Notice);
        Ok(RankCompletion { interrupted: outcome.interrupted, stop_reason, peak_rss_bytes: peak_rss_bytes() })
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
        let RankStart { program, training, .. } = start;
        let (comm, status) = connect_rank(region, program).map_err(|error| ExecError::Program(error.text))?;
        let controls = training.controls(region.stop());
        let training = RankTraining { program, resources, comm: &*comm, status, mesh: None, controls };
        let mut link = ParentLink { parent, region, status };
        let checkpoints = &self.run.join(CHECKPOINTS);
        let mut observer = RankObserver::new(program, Some(status), checkpoints, &mut link);
        let result = catch_unwind(AssertUnwindSafe(|| training.run(state, &mut observer)));
        // Before the communicator is dropped: ranks that wait for this one would report that it has left.
        match &result {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => region.abort(self.failed_rank(error, region)),
            Err(_) => region.abort(self.rank),
        }
        result.unwrap_or_else(|panic| resume_unwind(panic)).map_err(|error| error.source)
    }

    /// The rank that made this one fail with `error`, while the other ranks still wait.
    fn failed_rank(&self, error: &RankError, region: &Region) -> usize {
        let peer = timed_out_peer(&error.source);
        peer.map_or(self.rank, |(peer, _)| rank_to_blame(self.rank, peer, |r| region.snapshot(r)?.waiting_for))
    }
}

/// The rank that a rank waited for until the timeout, and how long it waited, if `error` is a timeout.
fn timed_out_peer(error: &ExecError) -> Option<(usize, Duration)> {
    match error {
        ExecError::Peer(CommError::Timeout { peer, waited, .. }) => Some((*peer, *waited)),
        _ => None,
    }
}

/// The report of `error`, where `by` is the rank that caused the run to be aborted.
fn report_failure(error: &LaunchError, by: Option<usize>) -> ReportedFailure {
    let timed_out = match error {
        LaunchError::Single(error) => timed_out_peer(error),
        _ => None,
    };
    let kind = match timed_out {
        _ if error.is_aborted() => FailureKind::Aborted,
        Some((peer, waited)) => FailureKind::TimedOut { peer: by.unwrap_or(peer), seconds: waited.as_secs() },
        None if error.is_not_finite() => FailureKind::NotFinite,
        None if error.kind() == ErrorKind::Request => FailureKind::Request,
        None => FailureKind::Other,
    };
    ReportedFailure { kind, text: error.to_string() }
}
