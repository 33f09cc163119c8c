//! Started operations: one thread per rank, spawned at first use, runs them in the order in which they were started.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::communicator::Pending;
use super::error::{CommError, OperationKind};
use super::local::RankStatus;
use super::lock::lock_or_recover;

/// A started operation. It owns the caller's tensors, which are released before the caller learns of its end.
type Job = Box<dyn FnOnce() -> Result<(), CommError> + Send>;

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    started: u64,
    /// Started operations that have ended; they end in order.
    ended: u64,
    failures: HashMap<u64, CommError>,
    closed: bool,
}

#[derive(Default)]
struct JobQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
pub(super) struct Background {
    queue: Arc<JobQueue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Background {
    /// Queues an all-reduce of `rank` that was checked.
    pub(super) fn start(&self, rank: usize, job: Job) -> Result<Pending, CommError> {
        let mut thread = lock_or_recover(&self.thread);
        if thread.is_none() {
            let queue = Arc::clone(&self.queue);
            let spawned = thread::Builder::new().name(format!("comm {rank}")).spawn(move || run_jobs(&queue));
            *thread = Some(spawned.map_err(CommError::Thread)?);
        }
        let mut state = lock_or_recover(&self.queue.state);
        if state.closed {
            return Err(CommError::Closed { operation: OperationKind::AllReduce });
        }
        let ticket = state.started;
        state.started += 1;
        state.jobs.push_back(job);
        self.queue.changed.notify_all();
        Ok(Pending::new(ticket))
    }

    /// Waits for `pending`, and shows it in the rank's `status`.
    pub(super) fn wait(&self, pending: &Pending, status: &RankStatus) -> Result<(), CommError> {
        let Some(ticket) = pending.ticket() else { return Ok(()) };
        let mut state = lock_or_recover(&self.queue.state);
        if ticket >= state.started {
            return Err(CommError::foreign_ticket());
        }
        if state.ended <= ticket && !state.closed {
            status.set_waiting_for_started_operation(true);
            while state.ended <= ticket && !state.closed {
                state = self.queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            status.record_progress();
            status.set_waiting_for_started_operation(false);
        }
        match state.failures.remove(&ticket) {
            Some(e) => Err(e),
            None if state.ended <= ticket => Err(CommError::Closed { operation: OperationKind::Wait }),
            None => Ok(()),
        }
    }

    /// Ends the thread. The transport is closed already, so no operation blocks it.
    pub(super) fn close(&self) {
        self.queue.close();
        if let Some(thread) = lock_or_recover(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

impl JobQueue {
    fn close(&self) {
        lock_or_recover(&self.state).closed = true;
        self.changed.notify_all();
    }
}

/// Closes the queue when the thread ends, also by a panic, so that no thread waits for ever.
struct CloseOnDrop<'a>(&'a JobQueue);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn run_jobs(queue: &JobQueue) {
    let _close = CloseOnDrop(queue);
    loop {
        let mut state = lock_or_recover(&queue.state);
        let job = loop {
            if state.closed {
                return;
            }
            if let Some(job) = state.jobs.pop_front() {
                break job;
            }
            state = queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        let result = job();
        let mut state = lock_or_recover(&queue.state);
        let ticket = state.ended;
        if let Err(e) = result {
            state.failures.insert(ticket, e);
        }
        state.ended += 1;
        queue.changed.notify_all();
    }
}
