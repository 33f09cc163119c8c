//! A rank's place in the groups of a topology, and the order of each group's operations.

use std::sync::Mutex;

use super::collective::Request;
use super::error::{CommError, Operation, OperationKind};
use super::local::OPERATION_QUEUES;
use super::lock::lock_or_recover;
use runner_spec::topology::{GroupId, Topology};

/// The groups of a topology; `None` for a group that the rank is not in.
pub(crate) struct Memberships {
    rank: usize,
    groups: Vec<Option<Membership>>,
}

/// A rank's place in a group.
pub struct Membership {
    pub(crate) group: usize,
    pub(crate) ranks: Vec<usize>,
    /// The rank's index in `ranks`.
    pub(crate) own_index: usize,
    queues: [Mutex<QueuePosition>; OPERATION_QUEUES],
}

/// The position of a rank in one queue of a group's operations.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct QueuePosition {
    /// The number of operations that have ended.
    pub(crate) operations: u64,
    /// The number of the next piece, where pieces are numbered.
    pub(crate) next_piece: u64,
    /// An operation failed half way: members may disagree about what comes next.
    is_broken: bool,
}

impl QueuePosition {
    pub(crate) fn at(operations: u64, next_piece: u64) -> Self {
        Self { operations, next_piece, is_broken: false }
    }
}

impl Memberships {
    /// The groups of `rank`. `position` returns where the rank is in a queue, given the group, the queue and the rank's index.
    pub(crate) fn new(
        topology: &Topology,
        rank: usize,
        position: impl Fn(usize, usize, usize) -> QueuePosition,
    ) -> Self {
        let membership = |(group, ranks): (usize, &Vec<usize>)| {
            let own_index = ranks.iter().position(|&member| member == rank)?;
            let queues = std::array::from_fn(|queue| Mutex::new(position(group, queue, own_index)));
            Some(Membership { group, ranks: ranks.clone(), own_index, queues })
        };
        Self { rank, groups: topology.groups.iter().enumerate().map(membership).collect() }
    }

    pub(crate) fn get(&self, group: GroupId) -> Result<&Membership, CommError> {
        let membership = self.groups.get(group.0).and_then(Option::as_ref);
        membership.ok_or(CommError::NotMember { group: group.0, rank: self.rank })
    }
}

impl Membership {
    /// Runs the next operation of a queue. Operations of one queue run one after another.
    pub(crate) fn run(
        &self,
        queue: usize,
        request: Request,
        ensure_running: impl FnOnce(OperationKind) -> Result<(), CommError>,
        work: impl FnOnce(Operation, &mut QueuePosition) -> Result<(), CommError>,
    ) -> Result<(), CommError> {
        let Request { kind, element, bytes, root } = request;
        if let Some(root) = root.filter(|root| !self.ranks.contains(root)) {
            return Err(CommError::NotMember { group: self.group, rank: root });
        }
        let mut position = lock_or_recover(&self.queues[queue]);
        ensure_running(kind)?;
        if position.is_broken {
            return Err(CommError::Closed { operation: kind });
        }
        let operation = Operation { kind, element, bytes: bytes as u64, root, sequence: position.operations };
        position.operations = position.operations.wrapping_add(1);
        let result = work(operation, &mut position);
        position.is_broken = result.is_err();
        result
    }

    /// The indices of the other members.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.own_index;
        (0..self.ranks.len()).filter(move |index| *index != own)
    }

    /// The index of the operation's root.
    pub(crate) fn root_index(&self, operation: &Operation) -> Option<usize> {
        self.ranks.iter().position(|rank| Some(*rank) == operation.root)
    }
}
