//! Collectives, whatever the transport.

use std::ops::Range;

use super::buffers::Buffers;
use super::communicator::GroupOperation;
use super::error::{CommError, ElementType, Operation, OperationKind};
use super::group::Membership;
use runner_compute::kernels::cpu::Stored;

/// The most bytes that pass between two members at a time: two members' input and output stay in a core's L2.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// Adds one member's numbers to `total`; the first's replace what is there. Members are added in order, and bf16 numbers in f32.
#[expect(clippy::inline_always, reason = "compiled with the instructions of the caller, which vectorizes it")]
#[inline(always)]
pub(crate) fn add_part<S: Stored>(total: &mut [S::Real], part: &[S], is_first: bool) {
    for (sum, &x) in total.iter_mut().zip(part) {
        *sum = if is_first { x.load() } else { *sum + x.load() };
    }
}

/// A collective with the caller's data.
pub enum Collective<'a> {
    Sum(&'a Buffers<'a>),
    Broadcast(&'a Buffers<'a>),
    /// `all` receives the bytes of each member, in the order of the group's ranks.
    Gather {
        own: &'a [u8],
        all: &'a mut Vec<Vec<u8>>,
    },
}

impl<'a> Collective<'a> {
    pub(crate) fn of_operation(operation: GroupOperation, buffers: &'a Buffers<'a>) -> Self {
        match operation {
            GroupOperation::AllReduce | GroupOperation::Reduce { .. } => Self::Sum(buffers),
            GroupOperation::Broadcast { .. } => Self::Broadcast(buffers),
        }
    }

    /// The collective as members announce it to each other, as operation `sequence` of its queue.
    pub(crate) fn operation(&self, kind: OperationKind, root: Option<usize>, sequence: u64) -> Operation {
        let (element, bytes) = match self {
            Self::Sum(buffers) | Self::Broadcast(buffers) => (buffers.element, buffers.bytes),
            Self::Gather { own, .. } => (ElementType::Bytes, own.len()),
        };
        Operation { kind, element, bytes: bytes as u64, root, sequence }
    }
}

/// One operation of one member while it runs over the transport `T`.
pub struct RunningCollective<'a, T> {
    pub(crate) transport: &'a T,
    pub(crate) membership: &'a Membership,
    pub(crate) queue: usize,
    pub(crate) operation: Operation,
}

impl<T> RunningCollective<'_, T> {
    /// The number of members of the group.
    pub(crate) fn members(&self) -> usize {
        self.membership.ranks.len()
    }

    /// This rank's index in the group.
    pub(crate) fn own_index(&self) -> usize {
        self.membership.own_index
    }

    /// The root's index in the group.
    pub(crate) fn root(&self) -> Option<usize> {
        self.membership.ranks.iter().position(|rank| Some(*rank) == self.operation.root)
    }

    /// The share that `member` sums of `length` bytes: whole vectors, in the order of members.
    pub(crate) fn share_of_member(&self, length: usize, member: usize) -> Range<usize> {
        let each = length.div_ceil(self.members()).next_multiple_of(128);
        (each * member).min(length)..(each * (member + 1)).min(length)
    }

    /// # Errors
    /// If `member` has announced another operation.
    pub(crate) fn check_same(&self, member: usize, theirs: Operation) -> Result<(), CommError> {
        if self.operation.matches(&theirs) {
            return Ok(());
        }
        let Membership { group, ranks, own_index, .. } = self.membership;
        let (rank, peer) = (ranks[*own_index], ranks[member]);
        Err(CommError::Mismatch { group: *group, rank, mine: self.operation, peer, theirs })
    }
}
