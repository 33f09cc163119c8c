//! A rank's place in the groups and channels of a topology, and the order of each group's operations.

use std::sync::Mutex;

use super::error::CommError;
use super::local::OPERATION_QUEUES;
use runner_spec::topology::{GroupId, Lane, Topology};

/// A topology, as one of its ranks uses it.
pub struct RankTopology {
    pub(crate) rank: usize,
    pub(crate) topology: Topology,
    /// For each group, `None` if the rank is not in it.
    memberships: Vec<Option<Membership>>,
}

/// A rank's place in a group.
pub(crate) struct Membership {
    pub(crate) group: usize,
    pub(crate) ranks: Vec<usize>,
    /// The rank's index in `ranks`.
    pub(crate) own_index: usize,
    /// Operations of one queue run one after another.
    pub(crate) queues: [Mutex<QueuePosition>; OPERATION_QUEUES],
}

/// The position of a rank in one queue of a group's operations.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueuePosition {
    /// The number of operations that have begun.
    pub(crate) operations: u64,
    /// The number of the next piece, where pieces are numbered.
    pub(crate) next_piece: u64,
    /// An operation failed half way: members may disagree about what comes next.
    pub(crate) is_broken: bool,
}

impl RankTopology {
    /// The place of `rank`. `position` returns the rank's position in a queue, given the group, the queue and the rank's index.
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
        let memberships = topology.groups.iter().enumerate().map(membership).collect();
        Self { rank, topology: topology.clone(), memberships }
    }

    pub(crate) fn membership(&self, group: GroupId) -> Result<&Membership, CommError> {
        let membership = self.memberships.get(group.0).and_then(Option::as_ref);
        membership.ok_or(CommError::NotMember { group: group.0, rank: self.rank })
    }

    /// The index of a channel in the topology.
    pub(crate) fn channel(&self, from: usize, to: usize, lane: Lane) -> Result<usize, CommError> {
        let index = self.topology.channels.iter().position(|c| (c.from, c.to, c.lane) == (from, to, lane));
        index.ok_or(CommError::NoChannel { from, to, lane })
    }
}

impl Membership {
    /// The indices of the other members.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.own_index;
        (0..self.ranks.len()).filter(move |index| *index != own)
    }
}
