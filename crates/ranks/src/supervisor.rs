//! The supervisor of ranks that are processes of this machine, as in ddp and pipelines. It starts them, records what they report,
//! notices when one fails, and then aborts all of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::child_process::{ChildProcess, RankOutput};
use super::error::LaunchError;
use super::failure::{FailureCause, RankFailure, describe_place, last_line};
use super::faults;
use super::hang_detector::{HangDetector, STEP_TIMEOUT};
use super::protocol::{FailureKind, FromRank, RankCompletion, RankStart, ReportedFailure};
use super::rank_inputs::{RankInputs, TrainingAttempt};
use super::rank_reports::{RankReports, RecordingError, RunRecorder};
use runner_comm::{RankPhase, Region};
use runner_spec::error::CommandError;
use runner_spec::event::ObserveError;
use runner_spec::plan::RankPlan;
use runner_threads::process;

/// A rank without a heartbeat for this long is lost.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);
/// A rank without a first heartbeat for this long is lost. Its program may come from a slow disk.
const FIRST_HEARTBEAT_TIMEOUT: Duration = Duration::from_mins(1);
/// The time between two checks of the processes.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// If a check comes this late, this process, and perhaps the whole machine, was suspended.
const SUSPENSION_THRESHOLD: Duration = Duration::from_secs(1);
/// The time that ranks may take to exit once the run is over, before they are killed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);
/// The additional time for those that write parts of a checkpoint.
const SAVE_TIMEOUT: Duration = Duration::from_mins(1);
/// The number of messages that wait to be recorded before ranks must wait.
const MAX_QUEUED_MESSAGES: usize = 1024;

/// The first message to each rank of `inputs`.
fn rank_starts(inputs: &RankInputs<'_>, run: &TrainingAttempt<'_>) -> Vec<RankStart> {
    let RankInputs { plan, experiment, .. } = inputs;
    let start = |planned: &RankPlan| RankStart {
        program: planned.program.clone(),
        channel_slots: plan.channel_slots,
        experiment: (*experiment).clone(),
        data: plan.data.clone(),
        threads: planned.hardware.threads,
        training: run.training.clone(),
    };
    plan.ranks.iter().map(start).collect()
}

/// Runs all ranks to their end, or until they are to stop. When this returns, none of their processes is left.
///
/// # Errors
/// The failure of the rank that failed first, or the error of the record.
pub(super) fn run(
    inputs: &RankInputs<'_>,
    run: &TrainingAttempt<'_>,
    record: &mut dyn RunRecorder,
) -> Result<Vec<RankCompletion>, LaunchError> {
    let starts = rank_starts(inputs, run);
    let Some(first) = starts.first() else { return Ok(Vec::new()) };
    let (region, memory) = Region::shared(&first.topology()).map_err(CommandError::from)?;
    let (queue, outputs) = sync_channel(MAX_QUEUED_MESSAGES);
    let mut ranks = Vec::with_capacity(starts.len());
    for (rank, start) in starts.into_iter().enumerate() {
        // If this fails, the processes that were started are killed as they are dropped.
        let process = ChildProcess::start(rank, run.folder, &memory, start, queue.clone());
        let process = process.map_err(CommandError::io(format!("rank {rank} cannot be started")))?;
        ranks.push(SupervisedRank { process, is_closed: false, heartbeat: 0, heartbeat_seen: Instant::now() });
    }
    // No other process may attach later.
    drop(memory);
    let step_timeout = faults::milliseconds("step-timeout").unwrap_or(STEP_TIMEOUT);
    let hangs = HangDetector::new(ranks.len(), run.from, step_timeout, Instant::now());
    let reports = RankReports::new(ranks.len(), record);
    Supervisor { inputs, run, region, ranks, hangs, reports, cause: None, deadline: None }.supervise(&outputs, &queue)
}

#[derive(Debug)]
struct SupervisedRank {
    process: ChildProcess,
    /// True once its standard output is closed.
    is_closed: bool,
    /// Its newest heartbeat, and when this process saw it first.
    heartbeat: u64,
    heartbeat_seen: Instant,
}

/// The reason for which the run is aborted.
#[derive(Debug)]
enum AbortCause {
    Record(ObserveError),
    Rank(Box<RankFailure>),
}

impl AbortCause {
    /// True if this later cause is the one to report. The first cause counts, unless it is an error that a rank reported and this is another
    /// rank that others killed: an exchange with it fails at once on NCCL, but a process with a GPU takes a second to exit.
    fn replaces(&self, first: Option<&Self>, was_killed_by_others: bool) -> bool {
        match (first, self) {
            (None, _) => true,
            (Some(Self::Rank(first)), Self::Rank(later)) => {
                first.reported() == Some(FailureKind::Other) && first.rank != later.rank && was_killed_by_others
            }
            _ => false,
        }
    }
}

struct Supervisor<'a> {
    inputs: &'a RankInputs<'a>,
    run: &'a TrainingAttempt<'a>,
    region: Arc<Region>,
    ranks: Vec<SupervisedRank>,
    hangs: HangDetector,
    reports: RankReports<'a>,
    cause: Option<AbortCause>,
    /// When the processes that are left are killed.
    deadline: Option<Instant>,
}

impl Supervisor<'_> {
    /// `_queue` keeps the channel open when all ranks have closed theirs.
    fn supervise(
        mut self,
        outputs: &Receiver<(usize, RankOutput)>,
        _queue: &SyncSender<(usize, RankOutput)>,
    ) -> Result<Vec<RankCompletion>, LaunchError> {
        let mut checked = Instant::now();
        loop {
            let output = outputs.recv_timeout(POLL_INTERVAL).ok();
            let is_quiet = matches!(output, None | Some((_, RankOutput::Closed)));
            match output {
                None => {}
                Some((rank, RankOutput::Closed)) => self.ranks[rank].is_closed = true,
                Some((rank, RankOutput::InvalidLine(why))) => {
                    self.reports.lose_message();
                    self.kill(rank, FailureCause::InvalidMessage(why));
                }
                Some((rank, RankOutput::Message(message))) => self.receive(rank, *message),
            }
            if is_quiet || checked.elapsed() >= POLL_INTERVAL {
                let was_suspended = checked.elapsed() >= SUSPENSION_THRESHOLD;
                checked = Instant::now();
                if self.run.stop.is_stop_requested() {
                    self.region.stop().store(true, Ordering::Relaxed);
                }
                if self.check_processes(was_suspended) {
                    return self.conclude();
                }
            }
        }
    }

    fn receive(&mut self, rank: usize, message: FromRank) {
        match &message {
            FromRank::Failed(ReportedFailure { kind: FailureKind::Aborted, .. }) => {}
            FromRank::Failed(ReportedFailure { kind: FailureKind::TimedOut { peer, seconds }, .. })
                if *peer < self.ranks.len() =>
            {
                let hung = FailureCause::Hung { seconds: *seconds };
                if self.cause.is_none() {
                    self.kill(*peer, hung);
                }
            }
            FromRank::Failed(failure) => self.fail(rank, FailureCause::Reported(failure.clone())),
            // Messages count after a failure, too: ranks report work done before it, and a part may complete a checkpoint.
            _ => {}
        }
        match self.reports.receive(rank, message) {
            Ok(None) => {}
            Ok(Some(answer)) => self.ranks.iter().for_each(|rank| rank.process.send(answer.clone())),
            Err(RecordingError::Record(error)) => self.abort(self.ranks.len(), AbortCause::Record(error)),
            Err(RecordingError::Protocol(why)) => self.kill(rank, FailureCause::InvalidMessage(why)),
        }
    }

    /// Checks every process, and returns true when all have exited. If this process was suspended, missing heartbeats do not count.
    fn check_processes(&mut self, was_suspended: bool) -> bool {
        let now = Instant::now();
        for rank in 0..self.ranks.len() {
            let status = self.region.snapshot(rank).unwrap_or_default();
            let supervised = &mut self.ranks[rank];
            if supervised.process.has_exited() {
                // Its last messages come first.
                let exit = supervised.process.exit_cause().filter(|_| supervised.is_closed);
                if let Some(cause) = exit.filter(|_| self.reports.end_of(rank).is_none()) {
                    self.fail(rank, cause);
                }
                continue;
            }
            if was_suspended || status.heartbeat != supervised.heartbeat {
                (supervised.heartbeat, supervised.heartbeat_seen) = (status.heartbeat, now);
            }
            let timeout = faults::milliseconds("heartbeat-timeout").unwrap_or(HEARTBEAT_TIMEOUT);
            let timeout = if status.heartbeat == 0 { FIRST_HEARTBEAT_TIMEOUT.max(timeout) } else { timeout };
            let hung = self.hangs.check(rank, &status, now, was_suspended);
            let cause = match hung {
                _ if self.cause.is_some() => continue,
                _ if now.duration_since(supervised.heartbeat_seen) >= timeout => {
                    let is_stopped = process::is_stopped(supervised.process.id());
                    FailureCause::Lost { seconds: timeout.as_secs(), is_stopped }
                }
                Some(time) => FailureCause::Hung { seconds: time.as_secs() },
                None => continue,
            };
            self.kill(rank, cause);
        }
        // Processes that have sent their last message must exit, too.
        if self.deadline.is_none() && (0..self.ranks.len()).all(|rank| self.reports.end_of(rank).is_some()) {
            self.deadline = Some(now + EXIT_TIMEOUT);
        }
        if let Some(late) = self.deadline.and_then(|deadline| now.checked_duration_since(deadline)) {
            self.kill_late_ranks(late);
        }
        self.ranks.iter_mut().all(|rank| rank.is_closed && rank.process.has_exited())
    }

    /// Kills the processes that are left, `late` after they should have exited. Those that write parts of a checkpoint get more time, as
    /// long as no other part of it is lost.
    fn kill_late_ranks(&mut self, late: Duration) {
        let exited: Vec<bool> = self.ranks.iter_mut().map(|rank| rank.process.has_exited()).collect();
        let is_lost = |rank: usize| exited[rank] && !self.reports.has_part(rank);
        let may_save = late < SAVE_TIMEOUT && !(0..exited.len()).any(is_lost);
        for (rank, supervised) in self.ranks.iter_mut().enumerate() {
            let phase = self.region.snapshot(rank).map(|status| status.phase);
            if !may_save || phase != Some(RankPhase::Saving) {
                supervised.process.kill();
            }
        }
    }

    /// Kills the process of `rank`, which failed because of `cause`.
    fn kill(&mut self, rank: usize, cause: FailureCause) {
        self.ranks[rank].process.kill();
        self.fail(rank, cause);
    }

    /// Aborts the run because `rank` failed.
    fn fail(&mut self, rank: usize, cause: FailureCause) {
        let failure = self.describe_failure(rank, cause);
        self.abort(rank, AbortCause::Rank(Box::new(failure)));
    }

    /// The failure of `rank`. The rank's status still shows where it was.
    fn describe_failure(&self, rank: usize, cause: FailureCause) -> RankFailure {
        let status = self.region.snapshot(rank).unwrap_or_default();
        let place = describe_place(&self.inputs.plan.ranks[rank].program, &status);
        let log = self.ranks[rank].process.log.clone();
        RankFailure { rank, cause, place, step: status.step.max(self.run.from), log, last_line: None }
    }

    /// Aborts the run because of `rank`, which is the world size if this process is the cause.
    fn abort(&mut self, rank: usize, cause: AbortCause) {
        let was_killed_by_others = self.ranks.get(rank).is_some_and(|rank| rank.process.was_killed_by_others());
        if !cause.replaces(self.cause.as_ref(), was_killed_by_others) {
            return;
        }
        if self.cause.is_none() {
            self.region.abort(rank);
            self.deadline = Some(Instant::now() + EXIT_TIMEOUT);
        }
        self.cause = Some(cause);
    }

    /// The end of the run, when all processes have exited.
    fn conclude(mut self) -> Result<Vec<RankCompletion>, LaunchError> {
        let mut failure = match (self.cause.take(), self.reports.first_unfinished()) {
            (Some(AbortCause::Record(error)), _) => return Err(error.into()),
            (Some(AbortCause::Rank(failure)), _) => failure,
            (None, None) => return Ok(self.reports.completions()),
            // The run was aborted because of a rank that then reported nothing.
            (None, Some(rank)) => {
                let reported = self.reports.end_of(rank).and_then(|end| end.clone().err());
                let cause = reported.map_or(FailureCause::Exited(0), FailureCause::Reported);
                Box::new(self.describe_failure(rank, cause))
            }
        };
        // The log of a rank that reported its failure contains the same.
        if failure.reported().is_none() {
            failure.last_line = last_line(&failure.log, self.ranks[failure.rank].process.log_from);
        }
        Err(LaunchError::Process(failure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn failure(rank: usize, cause: FailureCause) -> AbortCause {
        let place = "in step 7 at step[3] Forward 2".to_owned();
        AbortCause::Rank(Box::new(RankFailure { rank, cause, place, step: 6, log: PathBuf::new(), last_line: None }))
    }

    #[test]
    fn a_killed_rank_is_blamed_for_an_exchange_that_failed_first() {
        let reported = |kind| failure(0, FailureCause::Reported(ReportedFailure { kind, text: "NCCL".to_owned() }));
        let killed = failure(1, FailureCause::Killed("SIGKILL".to_owned()));
        assert!(killed.replaces(None, true));
        assert!(killed.replaces(Some(&reported(FailureKind::Other)), true));
        assert!(!killed.replaces(Some(&reported(FailureKind::Other)), false), "this program killed it");
        assert!(!killed.replaces(Some(&reported(FailureKind::NotFinite)), true));
        assert!(!killed.replaces(Some(&failure(0, FailureCause::Exited(1))), true));
        assert!(
            !failure(0, FailureCause::Exited(1)).replaces(Some(&reported(FailureKind::Other)), true),
            "the same rank"
        );
    }
}
