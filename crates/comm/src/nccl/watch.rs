//! The watch over a rank's links: when a rank has ended, or NCCL fails, every link of this rank is ended, so that nobody waits
//! for a transfer that will not come: kernels of NCCL stop, and with them who waits for the stream behind them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::CudaContext;

use super::link::Link;
use super::waits::Waits;
use crate::communicator::Communicator;
use crate::error::{CommError, OperationKind};
use crate::lock::lock_or_recover;

/// The time between two checks of the links.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// An operation that takes longer fails; the same as for ranks on one machine.
const OPERATION_TIMEOUT: Duration = Duration::from_mins(30);

/// How long operations may go on when the communicator is dropped, and how long an abort of a link may take.
const ABORT_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the orderly end of all links may take, one after another.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(15);

/// The state that a rank's thread and its watch share.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) host: Box<dyn Communicator>,
    links: Mutex<Vec<Arc<Link>>>,
    failure: Mutex<Option<(OperationKind, String)>>,
    pub(super) closed: AtomicBool,
    pub(super) waits: Waits,
}

impl Watched {
    pub(super) fn new(host: Box<dyn Communicator>) -> Self {
        Self {
            host,
            links: Mutex::default(),
            failure: Mutex::default(),
            closed: AtomicBool::new(false),
            waits: Waits::default(),
        }
    }

    pub(super) fn add(&self, link: Link) -> Arc<Link> {
        let link = Arc::new(link);
        lock_or_recover(&self.links).push(Arc::clone(&link));
        link
    }

    /// Whether operations may go on.
    pub(super) fn ensure_running(&self, operation: OperationKind) -> Result<(), CommError> {
        if let Some(by) = self.host.aborted() {
            return Err(CommError::Aborted { by });
        }
        let rank = self.host.rank();
        match lock_or_recover(&self.failure).clone() {
            Some((operation, what)) => Err(CommError::Device { operation, rank, what }),
            None if self.closed.load(Ordering::SeqCst) => Err(CommError::Closed { operation }),
            None => Ok(()),
        }
    }

    /// The error of an operation that NCCL refused: another rank's end explains it better than what NCCL says.
    pub(super) fn error(&self, operation: OperationKind, what: String) -> CommError {
        match self.ensure_running(operation) {
            Err(error) => error,
            Ok(()) => CommError::Device { operation, rank: self.host.rank(), what },
        }
    }

    /// Looks until the communicator is closed.
    pub(super) fn watch(&self, context: &Arc<CudaContext>) {
        // What cannot be bound shows where it is used.
        let _ = context.bind_to_thread();
        while !self.closed.load(Ordering::SeqCst) {
            thread::park_timeout(POLL_INTERVAL);
            let links = lock_or_recover(&self.links).clone();
            // Asked first: to ask a link may take as long as its kernels run.
            let aborted = self.host.aborted().is_some();
            let trouble = if aborted { None } else { links.iter().find_map(|link| link.trouble(OPERATION_TIMEOUT)) };
            let failed = trouble.is_some();
            if let Some(trouble) = trouble {
                lock_or_recover(&self.failure).get_or_insert(trouble);
            }
            if failed || aborted {
                end(&links, context, false);
            }
        }
    }

    /// Ends all links: gently where all is well, else at once.
    pub(super) fn close(&self, context: &Arc<CudaContext>) {
        self.closed.store(true, Ordering::SeqCst);
        let links = lock_or_recover(&self.links).clone();
        let well = || self.host.aborted().is_none() && lock_or_recover(&self.failure).is_none();
        let started = Instant::now();
        while well() && started.elapsed() < ABORT_TIMEOUT && !links.iter().all(|link| link.is_idle()) {
            thread::sleep(Duration::from_millis(5));
        }
        let idle = well() && links.iter().all(|link| link.is_idle());
        end(&links, context, idle);
    }
}

/// Ends links beside this thread, and leaves those behind from which NCCL does not come back. What is to end at once does so
/// together: an end waits for kernels of the device, and those of other links would go on until their own end.
fn end(links: &[Arc<Link>], context: &Arc<CudaContext>, well: bool) {
    let links: Vec<Arc<Link>> = links.iter().filter(|link| !link.is_over()).cloned().collect();
    if links.is_empty() {
        return;
    }
    // In good order they end one after another, as they do on the other ranks.
    let size = if well { links.len() } else { 1 };
    let (say, done) = channel::<()>();
    for links in links.chunks(size) {
        let (links, context, say) = (links.to_vec(), Arc::clone(context), say.clone());
        let work = move || {
            let _ = context.bind_to_thread();
            for link in &links {
                link.end(well);
            }
            drop(say);
        };
        // What has no thread is tried again at the next look.
        let _ = thread::Builder::new().name("nccl end".to_owned()).spawn(work);
    }
    drop(say);
    // Nothing is ever said: it ends when all have.
    let _ = done.recv_timeout(if well { DESTROY_TIMEOUT } else { ABORT_TIMEOUT });
}
