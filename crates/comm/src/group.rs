//! A rank's place in the groups and channels of a topology, and the order of each group's operations.

use parking_lot::Mutex;

use super::error::CommError;
use runner_spec::topology::{Channel, GroupId, Lane, Topology};

/// The number of queues of a group's operations: those that the caller waits for at once, and those that it started.
pub(crate) const OPERATION_QUEUES: usize = 2;
pub(crate) const FOREGROUND: usize = 0;
pub(crate) const BACKGROUND: usize = 1;

/// A topology, as one of its ranks uses it.
pub(crate) struct RankTopology {
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
    /// The number of operations that have started.
    pub(crate) operations: u64,
    /// The number of the next piece, where pieces are numbered.
    pub(crate) next_piece: u64,
    /// An operation failed half way: members may disagree about what comes next.
    pub(crate) is_broken: bool,
}

impl RankTopology {
    pub(crate) fn new(topology: &Topology, rank: usize) -> Self {
        let membership = |(group, ranks): (usize, &Vec<usize>)| {
            let own_index = ranks.iter().position(|&member| member == rank)?;
            Some(Membership { group, ranks: ranks.clone(), own_index, queues: <[Mutex<QueuePosition>; _]>::default() })
        };
        let memberships = topology.groups.iter().enumerate().map(membership).collect();
        Self { rank, topology: topology.clone(), memberships }
    }

    pub(crate) fn membership(&self, group: GroupId) -> Result<&Membership, CommError> {
        let membership = self.memberships.get(group.0).and_then(Option::as_ref);
        membership.ok_or(CommError::NotMember { group: group.0, rank: self.rank })
    }

    /// A channel, with its index in the topology.
    pub(crate) fn channel(&self, from: usize, to: usize, lane: Lane) -> Result<(usize, Channel), CommError> {
        let mut channels = self.topology.channels.iter().copied().enumerate();
        let found = channels.find(|(_, channel)| (channel.from, channel.to, channel.lane) == (from, to, lane));
        found.ok_or(CommError::NoChannel { from, to, lane })
    }
}

impl Membership {
    /// The indices of the other members.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.own_index;
        (0..self.ranks.len()).filter(move |index| *index != own)
    }
}
