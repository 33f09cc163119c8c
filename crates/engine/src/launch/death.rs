//! How a run in several processes failed: which rank it was, how it ended, what it was doing.

use std::fmt;
use std::path::{Path, PathBuf};

use super::message::{Failure, FailureKind};
use runner_comm::RegionError;
use runner_spec::event::ObserveError;

/// Why the ranks did not come to their end.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("rank {rank} cannot be started: {source}")]
    Start { rank: usize, source: std::io::Error },
    #[error(transparent)]
    Region(#[from] RegionError),
    /// What keeps the record gave up.
    #[error(transparent)]
    Record(#[from] ObserveError),
    #[error(transparent)]
    Rank(Box<Death>),
}

impl ProcessError {
    /// Whether a rank's process ended without a word, or had to be ended: a new start may go well.
    #[must_use]
    pub fn died(&self) -> bool {
        matches!(self, Self::Rank(death) if !matches!(death.how, How::Failed(_)))
    }

    /// The step in which a rank ended, from 0; `None` if none did.
    #[must_use]
    pub fn step(&self) -> Option<u64> {
        match self {
            Self::Rank(death) => Some(death.step),
            _ => None,
        }
    }

    /// Whether a number was not finite.
    #[must_use]
    pub fn not_finite(&self) -> bool {
        matches!(self, Self::Rank(death) if matches!(&death.how, How::Failed(f) if f.kind == FailureKind::NotFinite))
    }
}

/// The end of one rank, which ended the others.
#[derive(Debug, thiserror::Error)]
pub struct Death {
    pub rank: usize,
    pub how: How,
    /// The last instruction that it began: `in step 7 at step[3] Forward 2`.
    pub place: String,
    /// The step that it was in, from 0; if it was in none, the one that it would have begun with.
    pub step: u64,
    pub log: PathBuf,
    /// The last line of it that this process wrote.
    pub last: Option<String>,
}

/// How a rank's process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// By a signal.
    Killed(String),
    /// With this exit code, and no reason given.
    Exited(i32),
    /// It gave no sign of life, and was killed.
    Silent {
        seconds: u64,
        stopped: bool,
    },
    /// Its process lived, but it neither came on nor waited for anyone; it was killed.
    Hung {
        seconds: u64,
    },
    /// It said something that is no message, and was killed.
    Garbled(String),
    Failed(Failure),
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, how, place, log, last, .. } = self;
        match how {
            How::Killed(signal) => write!(f, "rank {rank} was killed by {signal} {place}")?,
            How::Exited(code) => write!(f, "rank {rank} exited with code {code} {place}")?,
            How::Silent { seconds, stopped } => {
                let stopped = if *stopped { ": its process is stopped" } else { "" };
                write!(f, "rank {rank} gave no sign of life for {seconds} s {place}{stopped}")?;
            }
            How::Hung { seconds } => write!(f, "rank {rank} hung: it did not come on for {seconds} s {place}")?,
            How::Garbled(line) => write!(f, "rank {rank} said what is no message, {line:?}, {place}")?,
            How::Failed(failure) => write!(f, "rank {rank} failed {place}: {}", failure.text)?,
        }
        write!(f, "; its log is {}", log.display())?;
        match last {
            Some(line) => write!(f, ", which ends: {line}"),
            None => Ok(()),
        }
    }
}

/// The last line that says something in the file `log` after its first `from` bytes.
pub(super) fn last_line(log: &Path, from: u64) -> Option<String> {
    use std::io::{Read, Seek, SeekFrom};
    const MOST: u64 = 64 << 10;
    let mut file = std::fs::File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(from.max(length.saturating_sub(MOST)))).ok()?;
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    // A panic ends with advice about backtraces.
    let mut lines = text.lines().rev().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("note: "));
    lines.next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deaths_say_who_how_and_where() {
        let death = |how: How, last: Option<&str>| {
            let place = "in step 7 at step[3] Forward 2".to_owned();
            let (log, last) = ("r/ranks/rank-1.log".into(), last.map(str::to_owned));
            Death { rank: 1, how, place, step: 6, log, last }.to_string()
        };
        let killed = "rank 1 was killed by SIGKILL in step 7 at step[3] Forward 2; its log is r/ranks/rank-1.log";
        assert_eq!(death(How::Killed("SIGKILL".into()), None), killed);
        assert_eq!(death(How::Killed("SIGKILL".into()), Some("out")), format!("{killed}, which ends: out"));
        let silent = death(How::Silent { seconds: 10, stopped: true }, None);
        assert!(silent.starts_with("rank 1 gave no sign of life for 10 s in step 7"), "{silent}");
        let hung = death(How::Hung { seconds: 120 }, None);
        assert!(hung.starts_with("rank 1 hung: it did not come on for 120 s in step 7"), "{hung}");
        let failed = How::Failed(Failure { kind: FailureKind::NotFinite, text: "the loss".into() });
        assert!(death(failed.clone(), None).contains("Forward 2: the loss; its log"));
        let error = |how: How| {
            let (place, log) = (String::new(), "".into());
            ProcessError::Rank(Box::new(Death { rank: 0, how, place, step: 0, log, last: None }))
        };
        assert!(error(failed.clone()).not_finite() && !error(failed).died());
        assert!(error(How::Hung { seconds: 1 }).died());
        assert!(error(How::Exited(101)).died() && !error(How::Exited(101)).not_finite());
    }

    #[test]
    fn of_a_log_the_last_words_of_this_process_count() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("rank-0.log");
        assert_eq!(last_line(&log, 0), None);
        std::fs::write(&log, "old\n").unwrap();
        assert_eq!(last_line(&log, 4), None, "of an earlier process");
        std::fs::write(&log, "old\nthread panicked\nboom\nnote: run with a backtrace\n\n").unwrap();
        assert_eq!(last_line(&log, 4).as_deref(), Some("boom"));
    }
}
