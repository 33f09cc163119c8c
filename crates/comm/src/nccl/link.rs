//! A communicator of NCCL with its stream: joined by all its members, watched, and ended without ever hanging.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SendError, channel};
use std::thread;
use std::time::{Duration, Instant};

use candle_core::Tensor;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, sys};
use parking_lot::Mutex;

use super::library::{Handle, NcclError, Place, Transfer, element};
use super::waits::StreamWaits;
use crate::communicator::Communicator;
use crate::error::{CommError, OperationKind};
use runner_compute::gpu;
use runner_compute::gpu::Gpu;
use runner_threads::threads;

/// The time that members may take to join.
const JOIN_TIMEOUT: Duration = Duration::from_mins(10);

/// The time that a call may take before another thread, which waits for it, stops it from outside; and the time that it may then take.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// The time between two checks whether the run was aborted.
const ABORT_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// One operation under way.
#[derive(Debug)]
struct RunningOperation {
    completed: Arc<CudaEvent>,
    kind: OperationKind,
    since: Instant,
    /// The tensor that must live until the operation has ended, if nothing else keeps it.
    kept: Option<Tensor>,
}

/// The link of a group or of a channel.
#[derive(Debug)]
pub(super) struct Link {
    stream: Arc<CudaStream>,
    state: Mutex<LinkState>,
    /// The address of the handle, by which another thread aborts it while a call on it does not return.
    address: usize,
    ended: AtomicBool,
}

#[derive(Debug)]
struct LinkState {
    /// `None` once the link was ended in good order.
    handle: Option<Handle>,
    running: Vec<RunningOperation>,
}

/// The place of a tensor in the memory of its device.
///
/// # Errors
/// If NCCL does not know the tensor's type.
pub(super) fn place(tensor: &Tensor) -> candle_core::Result<Place> {
    let Some(element) = element(tensor.dtype()) else { candle_core::bail!("NCCL sends no {:?}", tensor.dtype()) };
    Ok(Place { address: gpu::address(tensor)?, count: tensor.elem_count(), element })
}

fn event(stream: &Arc<CudaStream>) -> Result<CudaEvent, NcclError> {
    stream.record_event(Some(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)).map_err(NcclError::new)
}

/// Joins the members, with kernels of at most `blocks` blocks. The call cannot be stopped, so it runs on a separate thread while this one checks whether the run was aborted.
pub(super) fn join(
    host: &dyn Communicator,
    context: &Arc<CudaContext>,
    id: Vec<u8>,
    members: usize,
    me: usize,
    blocks: usize,
) -> Result<Link, CommError> {
    let rank = host.rank();
    let device =
        |what: &dyn Display| CommError::Device { operation: OperationKind::Connect, rank, what: what.to_string() };
    let stream = context.new_stream().map_err(|error| device(&error))?;
    let (sender, joined) = channel();
    let own = Arc::clone(context);
    let work = move || {
        let bound = own.bind_to_thread().map_err(NcclError::new);
        let handle = bound.and_then(|()| Handle::join(&id, members, me, blocks));
        // Nobody waits for this handle now.
        if let Err(SendError(Ok(handle))) = sender.send(handle) {
            handle.abort();
        }
    };
    threads::spawn("nccl", work).map_err(CommError::Thread)?;
    let started = Instant::now();
    loop {
        match joined.recv_timeout(ABORT_CHECK_INTERVAL) {
            Ok(Ok(handle)) => {
                let address = handle.address();
                let state = Mutex::new(LinkState { handle: Some(handle), running: Vec::new() });
                return Ok(Link { stream, state, address, ended: AtomicBool::new(false) });
            }
            Ok(Err(error)) => return Err(device(&error)),
            Err(RecvTimeoutError::Disconnected) => return Err(device(&"joining panicked")),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(by) = host.aborted() {
            return Err(CommError::Aborted { by });
        }
        if started.elapsed() > JOIN_TIMEOUT {
            let seconds = JOIN_TIMEOUT.as_secs();
            return Err(device(&format_args!("the {members} ranks did not all join within {seconds} s")));
        }
    }
}

impl Link {
    /// Starts transfers that begin when the work so far on `compute` is done. Returns their completion event. Memory is freed in the
    /// order of `compute`, so a tensor that a transfer uses must be `kept` where `compute` does not wait for the event.
    pub(super) fn start(
        &self,
        kind: OperationKind,
        compute: &Arc<CudaStream>,
        kept: Option<Tensor>,
        transfers: &[(Transfer, Place)],
    ) -> Result<Arc<CudaEvent>, NcclError> {
        let mut state = self.state.lock();
        state.release_completed();
        let handle = state.handle.as_ref().filter(|_| !self.ended.load(Ordering::SeqCst));
        let Some(handle) = handle else { return Err(NcclError::new("the communicator was ended")) };
        self.stream.wait(&event(compute)?).map_err(NcclError::new)?;
        handle.run(transfers, &self.stream)?;
        let completed = Arc::new(event(&self.stream)?);
        state.running.push(RunningOperation { completed: Arc::clone(&completed), kind, since: Instant::now(), kept });
        Ok(completed)
    }

    /// Frees a slot for one more operation that keeps a tensor, so that at most `slots` do: the work from here on waits for the oldest
    /// operations, whose tensors are released. The host runs ahead of the device, and would keep any number of tensors otherwise.
    pub(super) fn free_slot(&self, waits: &StreamWaits, gpu: &Gpu, slots: usize) -> Result<(), NcclError> {
        let mut state = self.state.lock();
        state.release_completed();
        let keeping = state.running.iter().filter(|operation| operation.kept.is_some()).count();
        let surplus = (keeping + 1).saturating_sub(slots.max(1));
        for operation in state.running.iter_mut().filter(|operation| operation.kept.is_some()).take(surplus) {
            waits.follow(gpu, &operation.completed)?;
            operation.kept = None;
        }
        Ok(())
    }

    /// The problem of the link, if it has one: an error of NCCL, or an operation that takes longer than `timeout`.
    pub(super) fn problem(&self, timeout: Duration) -> Option<(OperationKind, String)> {
        // A thread that is in a call is not interrupted: the next check comes soon.
        let mut state = self.state.try_lock()?;
        state.release_completed();
        let handle = state.handle.as_ref().filter(|_| !self.ended.load(Ordering::SeqCst))?;
        let kind = state.running.first().map_or(OperationKind::Wait, |operation| operation.kind);
        if let Err(error) = handle.check() {
            return Some((kind, error.to_string()));
        }
        let late = state.running.first().filter(|operation| operation.since.elapsed() > timeout)?;
        Some((kind, format!("it did not finish within {} s", late.since.elapsed().as_secs())))
    }

    /// True if nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        let mut state = self.state.lock();
        state.release_completed();
        state.running.is_empty()
    }

    /// Ends the link: in good order if `is_orderly` is true, else at once, also while a call on it does not return.
    pub(super) fn end(&self, is_orderly: bool) {
        if self.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut waiting_since = Instant::now();
        let mut is_revoked = false;
        loop {
            let state = self.state.try_lock();
            match state.map(|mut state| state.handle.take()) {
                Some(Some(handle)) if is_orderly && !is_revoked => return handle.destroy(),
                Some(Some(handle)) => return handle.abort(),
                Some(None) => return,
                None if waiting_since.elapsed() <= CALL_TIMEOUT => thread::sleep(Duration::from_millis(5)),
                None if !is_revoked && Handle::revoke_from_outside(self.address) => {
                    (is_revoked, waiting_since) = (true, Instant::now());
                }
                None => return Handle::abort_from_outside(self.address),
            }
        }
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

impl LinkState {
    /// Releases the operations that have ended. Operations of one stream end in order.
    fn release_completed(&mut self) {
        let completed = self.running.iter().take_while(|operation| operation.completed.is_complete()).count();
        self.running.drain(..completed);
    }
}
