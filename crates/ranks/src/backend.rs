//! Trains the ranks of a run to their end, whether they are threads, processes that this process starts, or processes of a launcher.

use runner_checkpoint::{StateHash, hash_state};
use runner_executor::TrainedRank;
use runner_record::run_dir::CHECKPOINTS;
use runner_spec::error::{CommandError, PlainError};
use runner_spec::event::ObserveError;
use runner_threads::stop::StopReason;
use runner_threads::threads::thread_pool;

use super::error::LaunchError;
use super::launched_training::LaunchedTraining;
use super::protocol::{FromRank, RankCompletion};
use super::rank_inputs::{RankInputs, TrainingAttempt};
use super::rank_observer::{RankObserver, RecorderLink, observe_error};
use super::rank_reports::{RankReports, RecordingError, RunRecorder};
use super::saved_state::state_reader;
use super::supervisor;
use super::threads::{self, ThreadRank};

/// The ranks of a run.
pub enum RankBackend<'a> {
    /// Threads of this process.
    Threads(RankInputs<'a>),
    /// Processes that this process starts.
    Processes(RankInputs<'a>),
    /// Processes that a launcher started; this one is rank 0.
    Launched(&'a LaunchedTraining<'a>),
}

/// The end of training that did not fail.
pub struct TrainingEnd {
    pub interrupted: bool,
    /// The reason for which the process of a rank was asked to stop: a person's request counts before a notice.
    pub stop_reason: Option<StopReason>,
    pub hash: Option<StateHash>,
    /// Peak memory by rank, where ranks are processes.
    pub peak_rss_bytes: Vec<Option<u64>>,
}

impl RankBackend<'_> {
    /// Trains until the end, the first failure, or a stop.
    ///
    /// # Errors
    /// The failure of the rank that failed first, or that of the record.
    pub fn train(&self, run: &TrainingAttempt<'_>, record: &mut dyn RunRecorder) -> Result<TrainingEnd, LaunchError> {
        let ended = match self {
            Self::Threads(inputs) => return train_threads(inputs, run, record),
            Self::Processes(inputs) => supervisor::run(inputs, run, record),
            Self::Launched(launched) => launched.lead(run, record),
        };
        // Parts that no rank committed are removed. After a failure, ranks of other machines may still write; then the next session
        // removes them.
        if ended.is_ok() || !matches!(self, Self::Launched(_)) {
            record.abandon_parts();
        }
        let ranks = ended?;
        let is_asked = |reason| ranks.iter().any(|rank: &RankCompletion| rank.stop_reason == Some(reason));
        Ok(TrainingEnd {
            interrupted: ranks.iter().any(|rank| rank.interrupted),
            stop_reason: [StopReason::Interrupt, StopReason::Notice].into_iter().find(|reason| is_asked(*reason)),
            hash: record.newest_checkpoint().map(|(_, hash)| hash),
            peak_rss_bytes: ranks.iter().map(|rank| rank.peak_rss_bytes).collect(),
        })
    }
}

fn train_threads(
    inputs: &RankInputs<'_>,
    run: &TrainingAttempt<'_>,
    record: &mut dyn RunRecorder,
) -> Result<TrainingEnd, LaunchError> {
    let RankInputs { plan, resources, load_state, .. } = inputs;
    let mut ranks = Vec::with_capacity(plan.ranks.len());
    for planned in &plan.ranks {
        let threads = planned.hardware.threads;
        // On the rank's own threads, because memory is on the node of the thread that writes it first.
        let pool = thread_pool(threads).map_err(CommandError::from)?;
        let state = pool.install(|| load_state(&planned.program, run.training.checkpoint.as_deref()))?;
        ranks.push(ThreadRank { program: &planned.program, threads, state });
    }
    let is_only_rank = ranks.len() == 1;
    let controls = run.training.controls(run.stop);
    let Some(first) = plan.ranks.first() else {
        return Ok(TrainingEnd { interrupted: false, stop_reason: None, hash: None, peak_rss_bytes: Vec::new() });
    };
    let mut link = OwnRecord(RankReports::new(1, record));
    let checkpoints = run.folder.join(CHECKPOINTS);
    let mut observer = RankObserver::new(&first.program, None, &checkpoints, &mut link);
    let outcomes = threads::run(ranks, plan.channel_slots, resources, controls, &mut observer);
    // What a part that could not be written leaves is removed.
    record.abandon_parts();
    let outcomes = outcomes
        .map_err(|error| if is_only_rank { LaunchError::Single(error.source) } else { LaunchError::Rank(error) })?;
    // Rank 0 has the whole state.
    let [TrainedRank { state, interrupted, .. }, ..] = outcomes.as_slice() else {
        return Ok(TrainingEnd { interrupted: false, stop_reason: None, hash: None, peak_rss_bytes: Vec::new() });
    };
    let saved = record.newest_checkpoint().filter(|(step, _)| *step == state.step);
    let hash =
        saved.map_or_else(|| hash_state(&state_reader(state)), |(_, hash)| Ok(hash)).map_err(CommandError::from)?;
    Ok(TrainingEnd { interrupted: *interrupted, stop_reason: None, hash: Some(hash), peak_rss_bytes: Vec::new() })
}

/// The connection of rank 0 to the record in its own process. It holds the whole training state, so its part is the checkpoint.
struct OwnRecord<'a>(RankReports<'a>);

impl RecorderLink for OwnRecord<'_> {
    fn send(&mut self, message: FromRank) -> Result<(), ObserveError> {
        self.0.receive(0, message).map(drop).map_err(|error| match error {
            RecordingError::Record(error) => error,
            RecordingError::Protocol(why) => observe_error(PlainError::failure(why)),
        })
    }

    fn await_commit(&mut self, _: u64) -> Result<(), ObserveError> {
        Ok(())
    }
}
