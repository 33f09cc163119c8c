//! The interface between the executor and a transport. Buffers are tensors, and groups and channels are declared before, so that
//! transports between devices (streams, registered memory) can implement it.

use std::fmt;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};

use super::error::{CommError, OperationKind};
use runner_spec::topology::{GroupId, Lane};

/// One rank's end of the communication.
///
/// Members of a group issue its operations in the same order, and its started operations in a separate order.
/// Buffers are contiguous tensors. A tensor's lock is taken for copies only, but a started operation takes it on another thread: a
/// kernel must not hold two locks on that tensor's storage at once (two reads of it included).
pub trait Communicator: Send + Sync + fmt::Debug {
    fn rank(&self) -> usize;

    fn world_size(&self) -> usize;

    /// Runs an operation of the group in `buffer`.
    ///
    /// # Errors
    /// See `CommError`. After an error the group is closed to this rank.
    fn run(&self, group: GroupId, operation: GroupOperation, buffer: &Tensor) -> Result<(), CommError>;

    /// Starts operations that run during the caller's computation until `Pending::wait`, as one operation where the transport can. The
    /// started operations of a rank run in the order in which they were started. The tensors of an operation are contiguous views (e.g.
    /// `flat.narrow(..)`) of one element type that the caller leaves alone until then; other ranges of the same storage stay the caller's.
    ///
    /// # Errors
    /// If the request is wrong. Later errors come from `wait`.
    fn start(&self, group: GroupId, operations: Vec<TensorOperation>) -> Result<Pending, CommError>;

    /// Returns the bytes of each member (lengths may differ), in the order of the group's ranks.
    ///
    /// # Errors
    /// See `CommError`.
    fn all_gather(&self, group: GroupId, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError>;

    /// Point to point, first in first out per (from, to, lane). Does not block while the channel has a free slot.
    ///
    /// # Errors
    /// See `CommError`.
    fn send(&self, to: usize, lane: Lane, data: &Tensor) -> Result<(), CommError>;

    /// Receives the next message: a tensor of `shape` and `dtype` (f32, f64 or u32) on this rank's device. The receiver names both,
    /// because some transports carry no headers.
    ///
    /// # Errors
    /// See `CommError`.
    fn receive(&self, from: usize, lane: Lane, dtype: DType, shape: &[usize]) -> Result<Tensor, CommError>;

    /// Sets the device that the rank computes on. All ranks call it once, before the first operation on tensors. Transports of
    /// the host ignore it.
    ///
    /// # Errors
    /// If the ranks' devices cannot be connected.
    fn attach(&self, device: &Device) -> Result<(), CommError> {
        let _ = device;
        Ok(())
    }

    /// The rank that ended the run before its time, if it is known that one did.
    fn aborted(&self) -> Option<usize> {
        None
    }

    /// # Errors
    /// `CommError::Aborted` once the run was aborted.
    fn ensure_running(&self) -> Result<(), CommError> {
        self.aborted().map_or(Ok(()), |by| Err(CommError::Aborted { by }))
    }

    /// The time that calling threads have been blocked or copying in this communicator so far.
    fn waited(&self) -> Duration {
        Duration::ZERO
    }
}

/// An operation of a group, and this rank's tensors.
pub type TensorOperation = (GroupOperation, Vec<Tensor>);

/// An operation of a group on the tensors of its members. A root is a rank of the world, and a member of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupOperation {
    /// In-place sum over the group, of f32, f64 or bf16. Every member gets the same bits: element sums in the order of the
    /// group's ranks. Sums of bf16 numbers are made in f32 and rounded once; NCCL may round partial sums.
    AllReduce,
    /// Such a sum that only `root` gets. The others' buffers are unspecified afterwards.
    Reduce { root: usize },
    /// Copies `root`'s buffer (f32, f64, bf16 or u32) into the buffers of all members.
    Broadcast { root: usize },
}

impl GroupOperation {
    pub(crate) fn kind(self) -> OperationKind {
        match self {
            Self::AllReduce => OperationKind::AllReduce,
            Self::Reduce { .. } => OperationKind::Reduce,
            Self::Broadcast { .. } => OperationKind::Broadcast,
        }
    }

    pub(crate) fn root(self) -> Option<usize> {
        match self {
            Self::AllReduce => None,
            Self::Reduce { root } | Self::Broadcast { root } => Some(root),
        }
    }
}

/// A started operation. It has ended only after `wait`.
#[must_use = "a started operation has ended only after `wait`"]
pub struct Pending(Option<Box<dyn FnOnce() -> Result<(), CommError> + Send>>);

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("has_ended", &self.0.is_none()).finish()
    }
}

impl Pending {
    /// For transports: an operation that `wait` waits for.
    pub fn new(wait: impl FnOnce() -> Result<(), CommError> + Send + 'static) -> Self {
        Self(Some(Box::new(wait)))
    }

    /// For transports: an operation that has already ended.
    pub fn completed() -> Self {
        Self(None)
    }

    /// Blocks until the operation has ended.
    ///
    /// # Errors
    /// The error of the operation.
    pub fn wait(self) -> Result<(), CommError> {
        self.0.map_or(Ok(()), |wait| wait())
    }
}
