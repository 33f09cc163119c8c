//! The communicator over a transport of the host: shared memory or TCP.

use std::fmt;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use candle_core::{DType, Tensor};

use super::background::Background;
use super::buffers::Buffers;
use super::collective::{Collective, Request};
use super::communicator::{Communicator, Pending};
use super::error::{CommError, OperationKind};
use super::group::Membership;
use super::local::{BACKGROUND, FOREGROUND, RankStatus};
use runner_spec::topology::{GroupId, Lane};

/// One rank's end of a transport.
pub trait HostTransport: Send + Sync + 'static {
    fn rank(&self) -> usize;

    fn world_size(&self) -> usize;

    /// This rank's status, which the other ranks see.
    fn status(&self) -> &RankStatus;

    /// # Errors
    /// If this rank is not in the group.
    fn membership(&self, group: GroupId) -> Result<&Membership, CommError>;

    /// # Errors
    /// If operations may not go on.
    fn ensure_running(&self, operation: OperationKind) -> Result<(), CommError>;

    /// Runs a collective in one of the group's operation queues. The group has several members.
    ///
    /// # Errors
    /// See `CommError`.
    fn run(
        &self,
        membership: &Membership,
        queue: usize,
        request: Request,
        work: Collective<'_>,
    ) -> Result<(), CommError>;

    /// # Errors
    /// See `CommError`.
    fn send(&self, to: usize, lane: Lane, data: &Tensor) -> Result<(), CommError>;

    /// # Errors
    /// See `CommError`.
    fn receive(&self, from: usize, lane: Lane, dtype: DType, shape: &[usize]) -> Result<Tensor, CommError>;

    /// The rank that ended the run before its time, if one did.
    fn aborted(&self) -> Option<usize>;

    /// Ends all operations of this rank.
    fn close(&self);
}

/// One rank's communicator. When it is dropped, its started operations end.
pub struct HostComm<T: HostTransport> {
    pub(crate) transport: Arc<T>,
    background: Background,
    /// Nanoseconds in operations.
    waited: AtomicU64,
}

impl<T: HostTransport> fmt::Debug for HostComm<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostComm").field("rank", &self.rank()).field("waited", &self.waited()).finish_non_exhaustive()
    }
}

impl<T: HostTransport> HostComm<T> {
    pub(crate) fn over(transport: T) -> Self {
        Self { transport: Arc::new(transport), background: Background::default(), waited: AtomicU64::new(0) }
    }

    fn timed<R>(&self, operation: impl FnOnce() -> R) -> R {
        let started = Instant::now();
        let result = operation();
        self.waited.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }

    fn run(&self, group: GroupId, request: Request, work: Collective<'_>) -> Result<(), CommError> {
        self.timed(|| run_collective(&*self.transport, group, FOREGROUND, request, work))
    }

    fn sum(&self, group: GroupId, kind: OperationKind, root: Option<usize>, buffer: &Tensor) -> Result<(), CommError> {
        let buffers = Buffers::new(kind, slice::from_ref(buffer))?;
        self.run(group, Request::sum(kind, root, &buffers)?, Collective::Sum(&buffers))
    }
}

/// Runs a collective. A group of one has nothing to exchange.
fn run_collective(
    transport: &impl HostTransport,
    group: GroupId,
    queue: usize,
    request: Request,
    work: Collective<'_>,
) -> Result<(), CommError> {
    let membership = transport.membership(group)?;
    if membership.ranks.len() > 1 {
        return transport.run(membership, queue, request, work);
    }
    if let Some(root) = request.root.filter(|root| *root != transport.rank()) {
        return Err(CommError::NotMember { group: group.0, rank: root });
    }
    transport.ensure_running(request.kind)?;
    if let Collective::Gather { own, all } = work {
        *all = vec![own.to_vec()];
    }
    Ok(())
}

/// Runs a started all-reduce, on the background thread.
pub(crate) fn run_started(transport: &impl HostTransport, group: GroupId, tensors: &[Tensor]) -> Result<(), CommError> {
    let buffers = Buffers::new(OperationKind::AllReduce, tensors)?;
    let request = Request::sum(OperationKind::AllReduce, None, &buffers)?;
    transport.run(transport.membership(group)?, BACKGROUND, request, Collective::Sum(&buffers))
}

impl<T: HostTransport> Drop for HostComm<T> {
    fn drop(&mut self) {
        self.transport.close();
        self.background.close();
    }
}

impl<T: HostTransport> Communicator for HostComm<T> {
    fn rank(&self) -> usize {
        self.transport.rank()
    }

    fn world_size(&self) -> usize {
        self.transport.world_size()
    }

    fn all_reduce(&self, group: GroupId, buffer: &Tensor) -> Result<(), CommError> {
        self.sum(group, OperationKind::AllReduce, None, buffer)
    }

    fn start_all_reduce(&self, group: GroupId, tensors: Vec<Tensor>) -> Result<Pending, CommError> {
        let members = self.transport.membership(group)?.ranks.len();
        let buffers = Buffers::new(OperationKind::AllReduce, &tensors)?;
        Request::sum(OperationKind::AllReduce, None, &buffers)?;
        self.transport.ensure_running(OperationKind::AllReduce)?;
        if members == 1 {
            return Ok(Pending::completed());
        }
        self.background.start(&self.transport, group, tensors)
    }

    fn wait(&self, pending: Pending) -> Result<(), CommError> {
        self.timed(|| self.background.wait(&pending, self.transport.status()))
    }

    fn reduce(&self, group: GroupId, root: usize, buffer: &Tensor) -> Result<(), CommError> {
        self.sum(group, OperationKind::Reduce, Some(root), buffer)
    }

    fn broadcast(&self, group: GroupId, root: usize, buffer: &Tensor) -> Result<(), CommError> {
        let kind = OperationKind::Broadcast;
        let buffers = Buffers::new(kind, slice::from_ref(buffer))?;
        let request = Request { kind, element: buffers.element, bytes: buffers.bytes, root: Some(root) };
        self.run(group, request, Collective::Broadcast(&buffers))
    }

    fn all_gather(&self, group: GroupId, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        let mut all = Vec::new();
        let request = Request::of_bytes(OperationKind::AllGather, bytes.len());
        self.run(group, request, Collective::Gather { own: bytes, all: &mut all })?;
        Ok(all)
    }

    fn barrier(&self, group: GroupId) -> Result<(), CommError> {
        self.run(group, Request::of_bytes(OperationKind::Barrier, 0), Collective::Barrier)
    }

    fn send(&self, to: usize, lane: Lane, data: &Tensor) -> Result<(), CommError> {
        self.timed(|| self.transport.send(to, lane, data))
    }

    fn receive(&self, from: usize, lane: Lane, dtype: DType, shape: &[usize]) -> Result<Tensor, CommError> {
        self.timed(|| self.transport.receive(from, lane, dtype, shape))
    }

    fn aborted(&self) -> Option<usize> {
        self.transport.aborted()
    }

    fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }
}
