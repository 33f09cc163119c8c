//! Started operations: a thread per rank, made at first use, that works through them in the order started.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use candle_core::Tensor;

use super::communicator::Pending;
use super::error::{CommError, Kind};
use super::local::Seat;
use runner_spec::topology::GroupId;

/// What a transport does of a started operation, on the thread.
pub(super) trait Reduces: Send + Sync + 'static {
    fn rank(&self) -> usize;

    fn all_reduce_started(&self, group: GroupId, buffers: &[Tensor]) -> Result<(), CommError>;
}

/// One started all-reduce.
struct Job {
    group: GroupId,
    buffers: Vec<Tensor>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    started: u64,
    /// Of those started, how many are over; they end in order.
    over: u64,
    failures: HashMap<u64, CommError>,
    closed: bool,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub(super) struct Background {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Background {
    /// Puts an all-reduce, found to be right, into the queue.
    pub(super) fn start<C: Reduces>(
        &self,
        core: &Arc<C>,
        group: GroupId,
        buffers: Vec<Tensor>,
    ) -> Result<Pending, CommError> {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let (core, queue) = (Arc::clone(core), Arc::clone(&self.queue));
            let name = format!("comm {}", core.rank());
            let made = thread::Builder::new().name(name).spawn(move || work(&*core, &queue));
            *thread = Some(made.map_err(CommError::Thread)?);
        }
        let mut state = lock(&self.queue.state);
        if state.closed {
            return Err(CommError::Closed { operation: Kind::AllReduce });
        }
        let ticket = state.started;
        state.started += 1;
        state.jobs.push_back(Job { group, buffers });
        self.queue.changed.notify_all();
        Ok(Pending::new(ticket))
    }

    /// `seat` is that of the rank, which shows that it waits.
    pub(super) fn wait(&self, pending: &Pending, seat: &Seat) -> Result<(), CommError> {
        let Some(ticket) = pending.ticket() else { return Ok(()) };
        let mut state = lock(&self.queue.state);
        if ticket >= state.started {
            let what = "an operation that another communicator started".to_owned();
            return Err(CommError::Request { operation: Kind::Wait, what });
        }
        if state.over <= ticket && !state.closed {
            seat.set_waiting_for_started(true);
            while state.over <= ticket && !state.closed {
                state = self.queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            seat.progress();
            seat.set_waiting_for_started(false);
        }
        match state.failures.remove(&ticket) {
            Some(e) => Err(e),
            None if state.over <= ticket => Err(CommError::Closed { operation: Kind::Wait }),
            None => Ok(()),
        }
    }

    /// Ends the thread; the core was closed before, so no operation keeps it.
    pub(super) fn close(&self) {
        lock(&self.queue.state).closed = true;
        self.queue.changed.notify_all();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

/// Closes the queue when the thread ends, also by a panic: whoever waits must not wait for ever.
struct Ending<'a>(&'a Queue);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).closed = true;
        self.0.changed.notify_all();
    }
}

fn work(core: &dyn Reduces, queue: &Queue) {
    let ending = Ending(queue);
    loop {
        let mut state = lock(&queue.state);
        let job = loop {
            if state.closed {
                drop(state);
                drop(ending);
                return;
            }
            if let Some(job) = state.jobs.pop_front() {
                break job;
            }
            state = queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        let result = core.all_reduce_started(job.group, &job.buffers);
        // Let go of the caller's tensors before it is told.
        drop(job);
        let mut state = lock(&queue.state);
        let ticket = state.over;
        if let Err(e) = result {
            state.failures.insert(ticket, e);
        }
        state.over += 1;
        queue.changed.notify_all();
    }
}

/// The queue is right at any moment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
