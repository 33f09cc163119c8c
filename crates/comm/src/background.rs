//! Started operations: one thread per rank, spawned at first use, runs them in the order in which they were started.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::error::{CommError, OperationKind};
use super::rank_status::RankStatus;
use runner_spec::panics::panic_message;
use runner_threads::threads;

type OperationResult = Result<(), CommError>;

/// A started operation. It owns the caller's tensors, which are released before the caller learns of its end.
type Job = Box<dyn FnOnce() -> OperationResult + Send>;

#[derive(Default)]
pub(super) struct Background {
    thread: Mutex<Option<JobThread>>,
}

/// The thread, and its queue of jobs, each with the receiver of its result.
struct JobThread {
    jobs: Sender<(Job, Sender<OperationResult>)>,
    handle: JoinHandle<()>,
}

impl JobThread {
    fn spawn(rank: usize) -> Result<Self, CommError> {
        let (jobs, queue) = channel::<(Job, Sender<OperationResult>)>();
        let run = move || {
            for (job, result) in queue {
                let ended = catch_unwind(AssertUnwindSafe(job))
                    .unwrap_or_else(|panic| Err(CommError::Panicked(panic_message(&*panic).to_owned())));
                let _ = result.send(ended);
            }
        };
        let handle = threads::spawn(&format!("comm {rank}"), run).map_err(CommError::Thread)?;
        Ok(Self { jobs, handle })
    }
}

/// The result of a started operation, once it has ended.
pub(super) struct StartedOperation(Receiver<OperationResult>);

impl StartedOperation {
    /// Waits for the result, and shows the wait in the rank's `status`.
    pub(super) fn wait(&self, status: &RankStatus) -> OperationResult {
        let result = self.0.try_recv().or_else(|_| status.wait_for_started_operation(|| self.0.recv()));
        // The thread sends no result if the communicator was closed before it came to the operation.
        result.unwrap_or(Err(CommError::Closed { operation: OperationKind::Wait }))
    }
}

impl Background {
    /// Queues an operation of `rank`.
    pub(super) fn start(&self, rank: usize, job: Job) -> Result<StartedOperation, CommError> {
        let mut thread = self.thread.lock();
        let thread = match &mut *thread {
            Some(thread) => thread,
            none => none.insert(JobThread::spawn(rank)?),
        };
        let (sender, result) = channel();
        let _ = thread.jobs.send((job, sender));
        Ok(StartedOperation(result))
    }

    /// Ends the thread. The transport is closed already, so the queued operations fail at once.
    pub(super) fn close(&self) {
        if let Some(JobThread { jobs, handle }) = self.thread.lock().take() {
            drop(jobs);
            let _ = handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_reported_as_one_and_later_operations_run() {
        let (background, status) = (Background::default(), RankStatus::default());
        let panicked = background.start(0, Box::new(|| panic!("for a test"))).unwrap();
        let later = background.start(0, Box::new(|| Ok(()))).unwrap();
        let error = panicked.wait(&status).unwrap_err().to_string();
        assert_eq!(error, "a started operation panicked: for a test");
        later.wait(&status).unwrap();
        background.close();
    }
}
