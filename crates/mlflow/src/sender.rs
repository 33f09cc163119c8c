//! A thread that sends the record of a run while the run trains.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender as Channel, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{MlflowError, REQUEST_TIMEOUT};
use crate::upload::{RunFile, Server, Upload};

/// The time between two looks at the record.
const SEND_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time between two attempts to reach a server that is away.
const MAX_BACKOFF: Duration = Duration::from_mins(1);
/// After the end of the run, what is left is sent for this long.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends the record of a run while it trains. Nothing waits for it before [`Sender::finish`].
#[derive(Debug)]
pub struct Sender {
    /// The files for the end of the run.
    end: Channel<Vec<RunFile>>,
    problems: Receiver<MlflowError>,
    result: Receiver<Result<(), MlflowError>>,
}

impl Sender {
    /// Starts to send the run directory `run` to `server`.
    ///
    /// # Errors
    /// If the run directory cannot be read, or there is no thread.
    pub fn start(run: &Path, server: &Server) -> Result<Self, MlflowError> {
        let upload = Upload::new(run, server)?;
        let ((end, ended), (report, problems), (finished, result)) = (channel(), channel(), channel());
        let work = move || {
            if let Some(outcome) = work(upload, &ended, &report) {
                // The session may have stopped waiting.
                let _ = finished.send(outcome);
            }
        };
        let thread = thread::Builder::new().name("mlflow".to_owned()).spawn(work);
        thread.map_err(|error: io::Error| MlflowError::Unreachable(format!("starting a thread: {error}")))?;
        Ok(Self { end, problems, result })
    }

    /// The reason why the server did not take what was sent, once: the thread goes on trying.
    pub fn take_problem(&self) -> Option<MlflowError> {
        self.problems.try_recv().ok()
    }

    /// Sends what is left, `files`, and how the run ended, for a limited time.
    ///
    /// # Errors
    /// If the server did not take everything.
    pub fn finish(self, files: Vec<RunFile>) -> Result<(), MlflowError> {
        let gone = || MlflowError::Unreachable("the thread that sends has ended".to_owned());
        self.end.send(files).map_err(|_| gone())?;
        self.result.recv_timeout(FINISH_TIMEOUT + REQUEST_TIMEOUT).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => Err(MlflowError::Unreachable("it does not answer".to_owned())),
            RecvTimeoutError::Disconnected => Err(gone()),
        })
    }
}

/// Sends until the end of the run. Returns whether the server took everything; `None` if the session has failed before.
fn work(
    mut upload: Upload,
    ended: &Receiver<Vec<RunFile>>,
    report: &Channel<MlflowError>,
) -> Option<Result<(), MlflowError>> {
    let mut wait = Duration::ZERO;
    let mut has_reported = false;
    let files = loop {
        match ended.recv_timeout(wait) {
            Ok(files) => break files,
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        match upload.send_new() {
            Ok(_) => wait = SEND_INTERVAL,
            Err(error) => {
                wait = (wait * 2).clamp(SEND_INTERVAL, MAX_BACKOFF);
                if !has_reported {
                    has_reported = true;
                    // A session that has ended reads no more.
                    let _ = report.send(error);
                }
            }
        }
    };
    let deadline = Instant::now() + FINISH_TIMEOUT;
    let mut wait = Duration::from_millis(100);
    loop {
        let result = upload.send_new().and_then(|_| upload.finish(&files));
        if result.is_ok() || Instant::now() + wait > deadline {
            return Some(result);
        }
        thread::sleep(wait);
        wait *= 2;
    }
}
