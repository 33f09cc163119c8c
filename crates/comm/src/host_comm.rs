//! The communicator over a transport of the host: shared memory or TCP.

use std::fmt;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};

use super::background::Background;
use super::buffers::Buffers;
use super::collective::{Collective, RunningCollective};
use super::communicator::{Communicator, GroupOperation, Pending, TensorOperation};
use super::error::{CommError, ElementType, OperationKind};
use super::group::{BACKGROUND, FOREGROUND, QueuePosition, RankTopology};
use super::rank_status::RankStatus;
use runner_spec::topology::{Channel, GroupId, Lane};

/// The tensor that a receiver expects as the next message of a channel.
pub struct ExpectedMessage<'a> {
    pub channel: Channel,
    pub dtype: DType,
    pub shape: &'a [usize],
}

impl ExpectedMessage<'_> {
    /// # Errors
    /// If a message of `bytes` bytes of `element` is a different tensor.
    pub(crate) fn check(&self, element: ElementType, bytes: usize) -> Result<(), CommError> {
        let Self { channel: Channel { from, to, lane, slot_bytes, .. }, dtype, shape } = self;
        let expected = shape.iter().product::<usize>() * dtype.size_in_bytes();
        if element.dtype() == *dtype && bytes == expected && bytes <= *slot_bytes {
            return Ok(());
        }
        Err(CommError::Message(format!(
            "the next {lane} message from rank {from} to rank {to} has {bytes} bytes of {element}, but a tensor of shape \
             {shape:?} of {} ({expected} bytes) was expected",
            dtype.as_str()
        )))
    }

    /// The tensor whose bytes were received and checked.
    pub(crate) fn tensor(&self, bytes: &[u8]) -> Result<Tensor, CommError> {
        Ok(Tensor::from_raw_buffer(bytes, self.dtype, self.shape, &Device::Cpu)?)
    }
}

/// One rank's end of a transport.
pub trait HostTransport: Send + Sync + Sized + 'static {
    /// This rank's status, which the other ranks see.
    fn status(&self) -> &RankStatus;

    /// # Errors
    /// If operations must not continue.
    fn ensure_running(&self, operation: OperationKind) -> Result<(), CommError>;

    /// Runs a collective of a group of several members.
    ///
    /// # Errors
    /// See `CommError`.
    fn run(
        running: &RunningCollective<'_, Self>,
        position: &mut QueuePosition,
        work: Collective<'_>,
    ) -> Result<(), CommError>;

    /// Sends `data` through `channel`, whose index in the topology is `index` and whose slots are long enough.
    ///
    /// # Errors
    /// See `CommError`.
    fn send(&self, index: usize, channel: Channel, data: &Tensor, element: ElementType) -> Result<(), CommError>;

    /// Receives the next message of the channel whose index in the topology is `index`.
    ///
    /// # Errors
    /// See `CommError`.
    fn receive(&self, index: usize, expected: &ExpectedMessage<'_>) -> Result<Tensor, CommError>;

    /// The rank that ended the run before its time, if one did.
    fn aborted(&self) -> Option<usize>;

    /// Ends all operations of this rank.
    fn close(&self);
}

/// Adds the time of `operation` to `waited`, in nanoseconds.
fn measure<R>(waited: &AtomicU64, operation: impl FnOnce() -> R) -> R {
    let started = Instant::now();
    let result = operation();
    waited.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
    result
}

/// A rank's end of a transport, and the rank's groups and channels.
pub(crate) struct HostRank<T> {
    pub(crate) transport: T,
    topology: RankTopology,
}

/// One rank's communicator. When it is dropped, its started operations end.
pub struct HostComm<T: HostTransport> {
    pub(crate) own: Arc<HostRank<T>>,
    background: Background,
    /// The time in operations, in nanoseconds.
    waited: Arc<AtomicU64>,
}

impl<T: HostTransport> fmt::Debug for HostComm<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostComm").field("rank", &self.rank()).field("waited", &self.waited()).finish_non_exhaustive()
    }
}

impl<T: HostTransport> HostComm<T> {
    pub(crate) fn with_transport(transport: T, topology: RankTopology) -> Self {
        Self {
            own: Arc::new(HostRank { transport, topology }),
            background: Background::default(),
            waited: Arc::default(),
        }
    }
}

impl<T: HostTransport> HostRank<T> {
    /// Runs a collective in a queue of a group's operations. A group of one has nothing to exchange.
    fn run_collective(
        &self,
        group: GroupId,
        queue: usize,
        kind: OperationKind,
        root: Option<usize>,
        work: Collective<'_>,
    ) -> Result<(), CommError> {
        let (transport, membership) = (&self.transport, self.topology.membership(group)?);
        if let Some(rank) = root.filter(|root| !membership.ranks.contains(root)) {
            return Err(CommError::NotMember { group: group.0, rank });
        }
        if membership.ranks.len() == 1 {
            transport.ensure_running(kind)?;
            if let Collective::Gather { own, all } = work {
                *all = vec![own.to_vec()];
            }
            return Ok(());
        }
        let mut position = membership.queues[queue].lock();
        transport.ensure_running(kind)?;
        if position.is_broken {
            return Err(CommError::Closed { operation: kind });
        }
        let operation = work.operation(kind, root, position.operations);
        position.operations += 1;
        // A panic leaves it broken, too.
        position.is_broken = true;
        let result = T::run(&RunningCollective { transport, membership, queue, operation }, &mut position, work);
        position.is_broken = result.is_err();
        result
    }
}

impl<T: HostTransport> Drop for HostComm<T> {
    fn drop(&mut self) {
        self.own.transport.close();
        self.background.close();
    }
}

impl<T: HostTransport> Communicator for HostComm<T> {
    fn rank(&self) -> usize {
        self.own.topology.rank
    }

    fn world_size(&self) -> usize {
        self.own.topology.topology.world_size
    }

    fn run(&self, group: GroupId, operation: GroupOperation, buffer: &Tensor) -> Result<(), CommError> {
        let (kind, root) = (operation.kind(), operation.root());
        let buffers = Buffers::new(kind, slice::from_ref(buffer))?;
        let work = Collective::of_operation(operation, &buffers);
        measure(&self.waited, || self.own.run_collective(group, FOREGROUND, kind, root, work))
    }

    fn start(&self, group: GroupId, operations: Vec<TensorOperation>) -> Result<Pending, CommError> {
        let members = self.own.topology.membership(group)?.ranks.len();
        for (operation, tensors) in &operations {
            Buffers::new(operation.kind(), tensors)?;
            self.own.transport.ensure_running(operation.kind())?;
        }
        if members == 1 {
            return Ok(Pending::completed());
        }
        let own = Arc::clone(&self.own);
        let job = move || {
            operations.iter().try_for_each(|(operation, tensors)| {
                let (kind, root) = (operation.kind(), operation.root());
                let buffers = Buffers::new(kind, tensors)?;
                own.run_collective(group, BACKGROUND, kind, root, Collective::of_operation(*operation, &buffers))
            })
        };
        let started = self.background.start(self.rank(), Box::new(job))?;
        // A pending operation does not keep the rank of a communicator that was dropped.
        let (own, waited) = (Arc::downgrade(&self.own), Arc::clone(&self.waited));
        Ok(Pending::new(move || {
            let own = own.upgrade().ok_or(CommError::Closed { operation: OperationKind::Wait })?;
            measure(&waited, || started.wait(own.transport.status()))
        }))
    }

    fn all_gather(&self, group: GroupId, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        let mut all = Vec::new();
        let work = Collective::Gather { own: bytes, all: &mut all };
        let kind = OperationKind::AllGather;
        measure(&self.waited, || self.own.run_collective(group, FOREGROUND, kind, None, work))?;
        Ok(all)
    }

    fn send(&self, to: usize, lane: Lane, data: &Tensor) -> Result<(), CommError> {
        let (operation, from) = (OperationKind::Send, self.rank());
        measure(&self.waited, || {
            let (index, channel) = self.own.topology.channel(from, to, lane)?;
            let element = ElementType::from_dtype(data.dtype());
            let what = || format!("no {:?}", data.dtype());
            let element = element.ok_or_else(|| CommError::Request { operation, what: what() })?;
            let bytes = data.elem_count() * data.dtype().size_in_bytes();
            if bytes > channel.slot_bytes {
                return Err(CommError::Message(format!(
                    "a message of {bytes} bytes from rank {from} to rank {to} ({lane}) is longer than the channel's {}",
                    channel.slot_bytes
                )));
            }
            self.own.transport.ensure_running(operation)?;
            self.own.transport.send(index, channel, data, element)
        })
    }

    fn receive(&self, from: usize, lane: Lane, dtype: DType, shape: &[usize]) -> Result<Tensor, CommError> {
        measure(&self.waited, || {
            let (index, channel) = self.own.topology.channel(from, self.rank(), lane)?;
            self.own.transport.ensure_running(OperationKind::Receive)?;
            self.own.transport.receive(index, &ExpectedMessage { channel, dtype, shape })
        })
    }

    fn aborted(&self) -> Option<usize> {
        self.own.transport.aborted()
    }

    fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }
}
