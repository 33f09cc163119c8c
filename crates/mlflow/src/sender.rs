//! A thread that sends the record of a run while the run trains.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{MlflowError, REQUEST_TIMEOUT};
use crate::upload::{Server, Upload};
use runner_threads::threads;

/// How often the thread reads the record.
const SEND_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time between two attempts to reach a server that is away.
const MAX_BACKOFF: Duration = Duration::from_mins(1);
/// How long the thread keeps sending after the run has ended.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);
/// How often [`Sender::finish`] asks whether to keep waiting.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The outcome of sending the record of a run to its end.
#[derive(Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// The server has all metrics and the status.
    Sent,
    /// The caller did not wait any longer.
    WaitEnded,
}

/// Sends the record of a run while it trains. Nothing waits for it before [`Sender::finish`].
#[derive(Debug)]
pub struct Sender {
    /// Tells that the run has ended.
    end: mpsc::Sender<()>,
    problems: Receiver<MlflowError>,
    /// The result of sending metrics and status after the end of the run.
    result: Receiver<Result<(), MlflowError>>,
}

impl Sender {
    /// Starts to send the run directory `run` to `server`.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn start(run: &Path, server: &Server) -> Result<Self, MlflowError> {
        let mut upload = Upload::new(run, server);
        let ((end, ended), (report, problems), (finished, result)) = (channel(), channel(), channel());
        let work = move || {
            if send_until_end(&mut upload, &ended, &report) {
                // The session may have stopped waiting.
                let _ = finished.send(send_rest(&mut upload, Instant::now() + FINISH_TIMEOUT));
            }
        };
        threads::spawn("mlflow", work).map_err(|error| MlflowError::Unreachable(error.to_string()))?;
        Ok(Self { end, problems, result })
    }

    /// The first error of sending since the server last took something, returned once. The thread keeps trying.
    pub fn take_problem(&self) -> Option<MlflowError> {
        self.problems.try_recv().ok()
    }

    /// Sends the remaining lines and how the run ended, for a limited time. `keeps_waiting` is called again and again until then, and ends
    /// the wait by returning false.
    ///
    /// # Errors
    /// If the server did not take all metrics and the status.
    pub fn finish(self, keeps_waiting: &mut dyn FnMut() -> bool) -> Result<SendOutcome, MlflowError> {
        let gone = || MlflowError::Unreachable("the thread that sends has ended".to_owned());
        self.end.send(()).map_err(|_| gone())?;
        // The thread may be in a request when the run ends.
        let limit = FINISH_TIMEOUT + REQUEST_TIMEOUT;
        let deadline = Instant::now() + limit;
        loop {
            match self.result.recv_timeout(POLL_INTERVAL) {
                Ok(result) => return result.map(|()| SendOutcome::Sent),
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => return Err(not_everything(limit)),
                Err(RecvTimeoutError::Timeout) if !keeps_waiting() => return Ok(SendOutcome::WaitEnded),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

fn not_everything(limit: Duration) -> MlflowError {
    MlflowError::Unreachable(format!("it did not accept everything within {} seconds", limit.as_secs()))
}

/// Sends new lines until the run ends. Returns false if the session failed before.
fn send_until_end(upload: &mut Upload, ended: &Receiver<()>, report: &mpsc::Sender<MlflowError>) -> bool {
    let mut wait = Duration::ZERO;
    let mut has_reported = false;
    loop {
        match ended.recv_timeout(wait) {
            Ok(()) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => {}
        }
        match upload.send_new(Some(Instant::now() + SEND_INTERVAL)) {
            Ok(sent) => {
                wait = if sent.is_all { SEND_INTERVAL } else { Duration::ZERO };
                has_reported = false;
            }
            Err(error) => {
                wait = (wait * 2).clamp(SEND_INTERVAL, MAX_BACKOFF);
                if !has_reported {
                    has_reported = true;
                    // A session that has ended reads no more.
                    let _ = report.send(error);
                }
            }
        }
    }
}

/// Sends all lines and the status. Tries again after an error, until `deadline`.
fn send_rest(upload: &mut Upload, deadline: Instant) -> Result<(), MlflowError> {
    let mut wait = Duration::from_millis(100);
    loop {
        let result = upload
            .send_new(Some(deadline))
            .and_then(|sent| if sent.is_all { upload.send_status() } else { Err(not_everything(FINISH_TIMEOUT)) });
        if result.is_ok() || Instant::now() + wait > deadline {
            return result;
        }
        thread::sleep(wait);
        wait *= 2;
    }
}
