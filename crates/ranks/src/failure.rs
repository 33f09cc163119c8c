//! Failures of ranks: which rank it was, how it ended, and where in its program it was.

use std::path::{Path, PathBuf};

use super::protocol::{FailureKind, ReportedFailure};
use runner_comm::{LastSeen, RankPhase, RankSnapshot};
use runner_executor::{ExecError, InstructionList};
use runner_files::read_log_end;
use runner_spec::program::{Instruction, Program};

/// The error of one rank, with the last instruction that the rank began.
#[derive(Debug, thiserror::Error)]
#[error("rank {rank} failed {place}: {source}")]
pub struct RankError {
    pub rank: usize,
    /// Such as `in step 7 at step[3] Forward 2`.
    pub place: String,
    pub source: ExecError,
}

/// The place of the rank of `program` whose status is `status`, such as `in step 7 at step[3] Forward 2`.
pub(super) fn describe_place(program: &Program, status: &RankSnapshot) -> String {
    let index = status.index as usize;
    let periodic = || program.periodic.get(index).map(|periodic| &periodic.instruction);
    let (list, instruction) = match status.list {
        list if list == InstructionList::Start as u32 => ("start", program.start.get(index)),
        list if list == InstructionList::Step as u32 => ("step", program.instructions_at(status.step).get(index)),
        _ => ("periodic", periodic()),
    };
    let instruction = instruction.map_or_else(|| "Checkpoint".to_owned(), Instruction::to_string);
    match status.phase {
        RankPhase::Starting => "while starting".to_owned(),
        RankPhase::Finished => format!("after its last step, {}", status.step + 1),
        _ => format!("in step {} at {list}[{index}] {instruction}", status.step + 1),
    }
}

/// Where a rank of `program` was when it last sent its status. It may have got further, so the age is a part of the text.
pub(super) fn describe_last_seen(program: &Program, seen: &LastSeen) -> String {
    format!(
        "its last heartbeat, {:.1} s before, was sent {}",
        seen.age.as_secs_f64(),
        describe_place(program, &seen.status)
    )
}

/// The failure of one rank, which caused the others to be aborted.
#[derive(Debug, thiserror::Error)]
#[error("rank {rank} {}; its log is {}{}", cause.describe(place), log.display(), describe_last_line(last_line.as_deref()))]
pub struct RankFailure {
    pub rank: usize,
    pub cause: FailureCause,
    /// The last instruction that the rank began, such as `in step 7 at step[3] Forward 2`.
    pub place: String,
    /// The step, from 0, that the rank was in; before its first step, the step with which it would have started.
    pub step: u64,
    pub log: PathBuf,
    /// The last line that this process wrote to its log.
    pub last_line: Option<String>,
}

impl RankFailure {
    /// The kind of the failure, if the rank reported it itself.
    pub(super) fn reported(&self) -> Option<FailureKind> {
        match &self.cause {
            FailureCause::Reported(failure) => Some(failure.kind),
            _ => None,
        }
    }
}

/// The causes for which a rank's process failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailureCause {
    /// A signal of this name ended it.
    Killed(String),
    /// It exited with this code and reported no error.
    Exited(i32),
    /// It gave no heartbeat, and was killed.
    Lost {
        seconds: u64,
        is_stopped: bool,
    },
    /// It was alive but made no progress and waited for no other rank. It was killed.
    Hung {
        seconds: u64,
    },
    /// It sent an invalid message, for this reason, and was killed.
    InvalidMessage(String),
    Reported(ReportedFailure),
}

impl FailureCause {
    fn describe(&self, place: &str) -> String {
        match self {
            Self::Killed(signal) => format!("was killed by {signal} {place}"),
            Self::Exited(code) => format!("exited with code {code} {place}"),
            Self::Lost { seconds, is_stopped } => {
                let stopped = if *is_stopped { ": its process was suspended" } else { "" };
                format!("sent no heartbeat for {seconds} s {place}{stopped}")
            }
            Self::Hung { seconds } => format!("hung: it made no progress for {seconds} s {place}"),
            Self::InvalidMessage(why) => format!("sent an invalid message {place}: {why}"),
            Self::Reported(failure) => format!("failed {place}: {}", failure.text),
        }
    }
}

fn describe_last_line(line: Option<&str>) -> String {
    line.map_or_else(String::new, |line| format!(", which ends: {line}"))
}

/// The last line with text in the file `log` after its first `from` bytes.
pub(super) fn last_line(log: &Path, from: u64) -> Option<String> {
    let text = read_log_end(log, from);
    // A panic ends with advice about backtraces.
    let mut lines = text.lines().rev().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("note: "));
    lines.next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::LaunchError;

    fn failure(cause: FailureCause, last_line: Option<&str>) -> RankFailure {
        let place = "in step 7 at step[3] Forward 2".to_owned();
        let (log, last_line) = ("r/ranks/rank-1.log".into(), last_line.map(str::to_owned));
        RankFailure { rank: 1, cause, place, step: 6, log, last_line }
    }

    #[test]
    fn failures_name_rank_cause_and_place() {
        let text = |cause: FailureCause| failure(cause, None).to_string();
        let killed = "rank 1 was killed by SIGKILL in step 7 at step[3] Forward 2; its log is r/ranks/rank-1.log";
        assert_eq!(text(FailureCause::Killed("SIGKILL".into())), killed);
        let with_line = failure(FailureCause::Killed("SIGKILL".into()), Some("out")).to_string();
        assert_eq!(with_line, format!("{killed}, which ends: out"));
        let lost = text(FailureCause::Lost { seconds: 10, is_stopped: true });
        assert!(lost.starts_with("rank 1 sent no heartbeat for 10 s in step 7"), "{lost}");
        let invalid = text(FailureCause::InvalidMessage("\"boom\" is not a message".to_owned()));
        assert!(
            invalid.starts_with("rank 1 sent an invalid message in step 7 at step[3] Forward 2: \"boom\" is"),
            "{invalid}"
        );
        let hung = text(FailureCause::Hung { seconds: 120 });
        assert!(hung.starts_with("rank 1 hung: it made no progress for 120 s in step 7"), "{hung}");
    }

    #[test]
    fn only_a_process_that_reported_no_error_is_restarted() {
        let error = |cause| LaunchError::Process(Box::new(failure(cause, None)));
        let reported =
            FailureCause::Reported(ReportedFailure { kind: FailureKind::NotFinite, text: "the loss".into() });
        let reported = error(reported);
        assert!(reported.to_string().contains("Forward 2: the loss; its log"), "{reported}");
        assert!(reported.is_not_finite() && reported.lost_rank().is_none());
        assert!(error(FailureCause::Hung { seconds: 1 }).lost_rank().is_some());
        let exited = error(FailureCause::Exited(101));
        assert!(exited.lost_rank().is_some() && !exited.is_not_finite());
    }

    #[test]
    fn the_last_line_of_this_process_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("rank-0.log");
        assert_eq!(last_line(&log, 0), None);
        std::fs::write(&log, "old\n").unwrap();
        assert_eq!(last_line(&log, 4), None, "of an earlier process");
        std::fs::write(&log, "old\nthread panicked\nboom\nnote: run with a backtrace\n\n").unwrap();
        assert_eq!(last_line(&log, 4).as_deref(), Some("boom"));
    }
}
