//! The watch over a rank's links: when a rank has ended, or NCCL fails, it ends every link of this rank, so that nothing waits for a
//! transfer that will not come. NCCL's kernels stop, and the work that waits behind them on the stream continues.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaEvent};
use parking_lot::Mutex;

use super::link::Link;
use super::waits::StreamWaits;
use crate::communicator::Communicator;
use crate::error::{CommError, OperationKind};
use crate::waiting::OPERATION_TIMEOUT;
use runner_compute::gpu::Gpu;
use runner_threads::threads;

/// The time between two checks of the links.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The time that operations may continue when the communicator is dropped, and that an abort of a link may take.
const ABORT_TIMEOUT: Duration = Duration::from_secs(3);

/// The time that the orderly end of all links may take, one after another.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(15);

/// The state that a rank's thread and its watch share.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) host: Box<dyn Communicator>,
    links: Mutex<Vec<Arc<Link>>>,
    failure: Mutex<Option<(OperationKind, String)>>,
    is_closed: AtomicBool,
    pub(super) waits: StreamWaits,
}

/// The thread that watches the links. When this is dropped, all links are ended.
#[derive(Debug)]
pub(super) struct WatchThread {
    watched: Arc<Watched>,
    context: Arc<CudaContext>,
    handle: Option<JoinHandle<()>>,
}

impl WatchThread {
    pub(super) fn spawn(watched: &Arc<Watched>, context: &Arc<CudaContext>) -> Result<Self, CommError> {
        let (watched, context) = (Arc::clone(watched), Arc::clone(context));
        let (seen, device) = (Arc::clone(&watched), Arc::clone(&context));
        let handle = threads::spawn("nccl watch", move || seen.watch(&device));
        Ok(Self { watched, context, handle: Some(handle.map_err(CommError::Thread)?) })
    }
}

impl Drop for WatchThread {
    fn drop(&mut self) {
        self.watched.close(&self.context);
        if let Some(handle) = self.handle.take() {
            handle.thread().unpark();
            let _ = handle.join();
        }
    }
}

impl Watched {
    pub(super) fn new(host: Box<dyn Communicator>) -> Self {
        Self {
            host,
            links: Mutex::default(),
            failure: Mutex::default(),
            is_closed: AtomicBool::new(false),
            waits: StreamWaits::default(),
        }
    }

    pub(super) fn add(&self, link: Link) -> Arc<Link> {
        let link = Arc::new(link);
        self.links.lock().push(Arc::clone(&link));
        link
    }

    /// # Errors
    /// If operations must not continue.
    pub(super) fn ensure_running(&self, operation: OperationKind) -> Result<(), CommError> {
        if let Some(by) = self.host.aborted() {
            return Err(CommError::Aborted { by });
        }
        let rank = self.host.rank();
        match self.failure.lock().clone() {
            Some((operation, what)) => Err(CommError::Device { operation, rank, what }),
            None if self.is_closed.load(Ordering::SeqCst) => Err(CommError::Closed { operation }),
            None => Ok(()),
        }
    }

    /// The error of an operation that NCCL refused. The end of another rank explains it better than the text of NCCL.
    pub(super) fn error(&self, operation: OperationKind, what: impl Display) -> CommError {
        match self.ensure_running(operation) {
            Err(error) => error,
            Ok(()) => CommError::Device { operation, rank: self.host.rank(), what: what.to_string() },
        }
    }

    /// Makes the work from here on wait for `event`, of an operation.
    pub(super) fn follow(&self, gpu: &Gpu, operation: OperationKind, event: &CudaEvent) -> Result<(), CommError> {
        self.waits.follow(gpu, event).map_err(|error| self.error(operation, error))
    }

    /// Checks the links until the communicator is closed.
    fn watch(&self, context: &Arc<CudaContext>) {
        // An error shows where the context is used.
        let _ = context.bind_to_thread();
        while !self.is_closed.load(Ordering::SeqCst) {
            thread::park_timeout(POLL_INTERVAL);
            let links = self.links.lock().clone();
            // Asked first: the check of a link may take as long as its kernels run.
            let aborted = self.host.aborted().is_some();
            let problem = if aborted { None } else { links.iter().find_map(|link| link.problem(OPERATION_TIMEOUT)) };
            let failed = problem.is_some();
            if let Some(problem) = problem {
                self.failure.lock().get_or_insert(problem);
            }
            if failed || aborted {
                end_links(&links, context, false);
            }
        }
    }

    /// Ends all links: in good order if nothing has failed, else at once.
    fn close(&self, context: &Arc<CudaContext>) {
        self.is_closed.store(true, Ordering::SeqCst);
        let links = self.links.lock().clone();
        let is_well = || self.host.aborted().is_none() && self.failure.lock().is_none();
        let started = Instant::now();
        while is_well() && started.elapsed() < ABORT_TIMEOUT && !links.iter().all(|link| link.is_idle()) {
            thread::sleep(Duration::from_millis(5));
        }
        let is_idle = is_well() && links.iter().all(|link| link.is_idle());
        end_links(&links, context, is_idle);
    }
}

/// Ends links beside this thread, and leaves those behind in which NCCL does not return. Links that end at once do so together: an
/// end waits for kernels of the device, and those of other links would continue until their own end.
fn end_links(links: &[Arc<Link>], context: &Arc<CudaContext>, is_orderly: bool) {
    let links: Vec<Arc<Link>> = links.iter().filter(|link| !link.is_ended()).cloned().collect();
    if links.is_empty() {
        return;
    }
    // In good order they end one after another, as they do on the other ranks.
    let size = if is_orderly { links.len() } else { 1 };
    let (sender, done) = channel::<()>();
    for links in links.chunks(size) {
        let (links, context, sender) = (links.to_vec(), Arc::clone(context), sender.clone());
        let work = move || {
            let _ = context.bind_to_thread();
            for link in &links {
                link.end(is_orderly);
            }
            drop(sender);
        };
        // A link without a thread is tried again at the next check.
        let _ = threads::spawn("nccl end", work);
    }
    drop(sender);
    // Nothing is ever sent: the wait ends when all senders are dropped.
    let _ = done.recv_timeout(if is_orderly { DESTROY_TIMEOUT } else { ABORT_TIMEOUT });
}
