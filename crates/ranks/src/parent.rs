//! The parent of a rank's process, as the rank sees it: the recorder at the other end of standard input and output.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::parent_id;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::protocol::{FailureKind, FromRank, RankStart, ReportedFailure, ToRank, describe_invalid_line, write_line};
use super::rank_observer::{RecorderLink, observe_error, peer_error};
use runner_comm::{CommError, RankStatus, Region};
use runner_spec::event::ObserveError;
use runner_threads::{process, threads};

/// The time between two heartbeats, and between two checks that the parent is alive.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);

/// The time between two checks whether the run was aborted, while the rank waits for a commit.
const ABORT_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The process that started this one.
#[derive(Debug)]
pub(super) struct Parent {
    messages: Receiver<ToRank>,
}

impl Parent {
    /// Receives the parent's first message, and exits this process when the parent ends or sends an invalid message, which is
    /// reported to it. `None` if no run has started this process.
    ///
    /// # Errors
    /// If the system gives no thread to receive with.
    pub(super) fn connect(rank: usize) -> io::Result<Option<(Self, RankStart)>> {
        process::name_process(&format!("runner rank {rank}"));
        let (queue, messages) = channel();
        let receive = move || {
            let mut has_parent = false;
            for line in BufReader::new(io::stdin()).lines() {
                let Ok(line) = line else { break };
                has_parent = true;
                let Ok(message) = serde_json::from_str::<ToRank>(&line) else {
                    let text = format!("the run sent an invalid message: {}", describe_invalid_line(line.as_bytes()));
                    let failure = ReportedFailure { kind: FailureKind::Other, text };
                    let _ = Self::send(&FromRank::Failed(failure));
                    break;
                };
                if queue.send(message).is_err() {
                    return;
                }
            }
            if has_parent {
                // Without the parent, nothing records this rank's work.
                exit(1);
            }
        };
        threads::spawn("parent", receive)?;
        match messages.recv() {
            Ok(ToRank::Start(start)) => Ok(Some((Self { messages }, *start))),
            _ => Ok(None),
        }
    }

    /// # Errors
    /// If the parent has ended.
    pub(super) fn send(message: &FromRank) -> io::Result<()> {
        write_line(&mut io::stdout().lock(), message)
    }
}

/// A rank's connection to its parent, which shows in the rank's status when the rank waits for the parent.
pub(super) struct ParentLink<'a> {
    pub parent: &'a mut Parent,
    pub region: &'a Region,
    pub status: &'a RankStatus,
}

impl RecorderLink for ParentLink<'_> {
    /// Blocks while the parent does not read.
    fn send(&mut self, message: FromRank) -> Result<(), ObserveError> {
        self.status.wait_for_parent(|| Parent::send(&message)).map_err(observe_error)
    }

    fn await_commit(&mut self, step: u64) -> Result<(), ObserveError> {
        self.status.wait_for_parent(|| {
            loop {
                match self.parent.messages.recv_timeout(ABORT_CHECK_INTERVAL) {
                    Ok(ToRank::Committed { step: committed }) if committed == step => return Ok(()),
                    Ok(_) => return Err(observe_error("the parent sent a message that does not belong here")),
                    Err(RecvTimeoutError::Disconnected) => return Err(observe_error("the parent has ended")),
                    Err(RecvTimeoutError::Timeout) => {
                        if let Some(by) = self.region.aborted() {
                            return Err(peer_error(CommError::Aborted { by }));
                        }
                    }
                }
            }
        })
    }
}

/// Records heartbeats of this process from a separate thread, which passes the request `stop` on to all ranks, and exits the process when its
/// parent has ended.
///
/// # Errors
/// If the system gives no thread.
pub(super) fn start_heartbeat(region: Arc<Region>, rank: usize, stop: Arc<AtomicBool>) -> io::Result<()> {
    let parent = parent_id();
    let work = move || {
        while let Some(status) = region.status(rank) {
            status.record_heartbeat(process::monotonic_milliseconds());
            if stop.load(Ordering::Relaxed) {
                region.stop().store(true, Ordering::Relaxed);
            }
            thread::sleep(HEARTBEAT_INTERVAL);
            if parent_id() != parent {
                exit(1);
            }
        }
    };
    threads::spawn("heartbeat", work).map(drop)
}
