//! Started operations: one thread per rank, spawned at first use, runs them in the order in which they were started.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use candle_core::Tensor;

use super::communicator::Pending;
use super::error::{CommError, OperationKind};
use super::host_comm::{HostTransport, run_started};
use super::local::RankStatus;
use super::lock::lock_or_recover;
use runner_spec::topology::GroupId;

/// One started all-reduce.
struct Job {
    group: GroupId,
    buffers: Vec<Tensor>,
}

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
    /// Queues an all-reduce that was checked.
    pub(super) fn start<T: HostTransport>(
        &self,
        transport: &Arc<T>,
        group: GroupId,
        buffers: Vec<Tensor>,
    ) -> Result<Pending, CommError> {
        let mut thread = lock_or_recover(&self.thread);
        if thread.is_none() {
            let (transport, queue) = (Arc::clone(transport), Arc::clone(&self.queue));
            let name = format!("comm {}", transport.rank());
            let made = thread::Builder::new().name(name).spawn(move || run_jobs(&*transport, &queue));
            *thread = Some(made.map_err(CommError::Thread)?);
        }
        let mut state = lock_or_recover(&self.queue.state);
        if state.closed {
            return Err(CommError::Closed { operation: OperationKind::AllReduce });
        }
        let ticket = state.started;
        state.started += 1;
        state.jobs.push_back(Job { group, buffers });
        self.queue.changed.notify_all();
        Ok(Pending::new(ticket))
    }

    /// Waits for `pending`, and shows it in the rank's `status`.
    pub(super) fn wait(&self, pending: &Pending, status: &RankStatus) -> Result<(), CommError> {
        let Some(ticket) = pending.ticket() else { return Ok(()) };
        let mut state = lock_or_recover(&self.queue.state);
        if ticket >= state.started {
            let what = "an operation that another communicator started".to_owned();
            return Err(CommError::Request { operation: OperationKind::Wait, what });
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
        lock_or_recover(&self.queue.state).closed = true;
        self.queue.changed.notify_all();
        if let Some(thread) = lock_or_recover(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

/// Closes the queue when the thread ends, also by a panic, so that no one waits for ever.
struct CloseOnDrop<'a>(&'a JobQueue);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        lock_or_recover(&self.0.state).closed = true;
        self.0.changed.notify_all();
    }
}

fn run_jobs(transport: &impl HostTransport, queue: &JobQueue) {
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
        let result = run_started(transport, job.group, &job.buffers);
        // The caller's tensors are released before it learns of the end.
        drop(job);
        let mut state = lock_or_recover(&queue.state);
        let ticket = state.ended;
        if let Err(e) = result {
            state.failures.insert(ticket, e);
        }
        state.ended += 1;
        queue.changed.notify_all();
    }
}
