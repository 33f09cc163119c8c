//! The layout of the region: the header, the statuses of the ranks, the counters and the staging of each group, then the channels.

use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::collective::PIECE_BYTES;
use crate::error::OPERATION_WORDS;
use crate::group::OPERATION_QUEUES;
use crate::rank_status::RankStatus;
use runner_spec::error::PlainError;
use runner_spec::topology::Topology;

/// Pieces that may be staged at once.
pub(super) const STAGED_PIECES: usize = 2;

const PAGE: usize = 4096;

/// Types that the region is made of.
///
/// # Safety
/// They consist of atomics only, so that they may be shared, and are valid when they are zeroes.
#[expect(unsafe_code, reason = "shared memory")]
pub(super) unsafe trait SharedType {}

/// The region's first page.
#[repr(C, align(128))]
pub(super) struct Header {
    /// The rank that caused the abort, plus 1.
    pub(super) abort: AtomicU64,
    pub(super) stop: AtomicBool,
}

/// The counters of one member of a group, for one queue of operations. The other members read them.
#[repr(C, align(128))]
pub(super) struct MemberCounters {
    /// The number of pieces in this member's staging.
    pub(super) staged: AtomicU64,
    /// The number of pieces whose share of the sum this member has written.
    pub(super) reduced: AtomicU64,
    /// The number of pieces that this member no longer needs from any other.
    pub(super) done: AtomicU64,
    /// The operation of each staged piece.
    pub(super) pieces: [[AtomicU64; OPERATION_WORDS]; STAGED_PIECES],
}

/// A channel's counters, each in separate cache lines, because each has a different writer.
#[repr(C)]
pub(super) struct Ring {
    pub(super) sent: Counter,
    pub(super) received: Counter,
}

#[repr(C, align(128))]
pub(super) struct Counter(pub(super) AtomicU64);

/// The header before each message.
#[repr(C, align(64))]
pub(super) struct SlotHeader {
    pub(super) bytes: AtomicU64,
    pub(super) element: AtomicU64,
}

macro_rules! placed {
    ($($t:ty),+) => {$(
        #[expect(unsafe_code, reason = "shared memory")]
        // SAFETY: atomics only; all of them may be zero.
        unsafe impl SharedType for $t {}
    )+};
}
placed!(Header, RankStatus, MemberCounters, Ring, SlotHeader);

/// Offsets in bytes from the region's start.
#[derive(Debug)]
pub(super) struct Layout {
    groups: Vec<GroupOffsets>,
    channels: Vec<ChannelOffsets>,
    pub(super) bytes: usize,
}

#[derive(Debug)]
struct GroupOffsets {
    members: usize,
    records: usize,
    staging: usize,
}

#[derive(Debug)]
struct ChannelOffsets {
    ring: usize,
    slots: usize,
    stride: usize,
}

fn too_large() -> PlainError {
    PlainError::failure("the groups and channels need more memory than can be addressed")
}

/// Assigns offsets, as long as there are addresses.
struct Cursor(usize);

impl Cursor {
    /// `count` times `each` bytes at the next multiple of `align`.
    fn take(&mut self, count: usize, each: usize, align: usize) -> Result<usize, PlainError> {
        let place = || {
            let start = self.0.checked_next_multiple_of(align)?;
            let end = start.checked_add(count.checked_mul(each)?)?;
            (isize::try_from(end).is_ok()).then_some((start, end))
        };
        let (start, end) = place().ok_or_else(too_large)?;
        self.0 = end;
        Ok(start)
    }
}

impl Layout {
    /// # Errors
    /// If the topology makes no sense, or is too large.
    pub(super) fn new(topology: &Topology) -> Result<Self, PlainError> {
        topology.check()?;
        let mut cursor = Cursor(PAGE);
        cursor.take(topology.world_size, size_of::<RankStatus>(), PAGE)?;
        let mut groups = Vec::new();
        for ranks in &topology.groups {
            let members = ranks.len();
            let records = cursor.take(OPERATION_QUEUES * members, size_of::<MemberCounters>(), PAGE)?;
            // A single member stages nothing.
            let staged = if members == 1 { 0 } else { OPERATION_QUEUES * STAGED_PIECES * members };
            groups.push(GroupOffsets { members, records, staging: cursor.take(staged, PIECE_BYTES, PAGE)? });
        }
        let mut channels = Vec::new();
        for c in &topology.channels {
            let ring = cursor.take(1, size_of::<Ring>(), PAGE)?;
            let stride = c.slot_bytes.checked_add(size_of::<SlotHeader>());
            let stride = stride.and_then(|s| s.checked_next_multiple_of(align_of::<SlotHeader>()));
            let stride = stride.ok_or_else(too_large)?;
            let slots = cursor.take(c.slots, stride, align_of::<SlotHeader>())?;
            channels.push(ChannelOffsets { ring, slots, stride });
        }
        let bytes = cursor.take(0, 1, PAGE)?;
        Ok(Self { groups, channels, bytes })
    }

    pub(super) fn status(rank: usize) -> usize {
        PAGE + rank * size_of::<RankStatus>()
    }

    /// The counters of the group's `member`-th rank.
    pub(super) fn counters(&self, group: usize, queue: usize, member: usize) -> usize {
        let g = &self.groups[group];
        g.records + (queue * g.members + member) * size_of::<MemberCounters>()
    }

    /// PIECE_BYTES bytes for one of the `STAGED_PIECES` pieces that a member may have staged.
    pub(super) fn staging(&self, group: usize, queue: usize, member: usize, turn: usize) -> usize {
        let g = &self.groups[group];
        g.staging + ((queue * g.members + member) * STAGED_PIECES + turn) * PIECE_BYTES
    }

    pub(super) fn ring(&self, channel: usize) -> usize {
        self.channels[channel].ring
    }

    /// The header of a slot; its message follows.
    pub(super) fn slot(&self, channel: usize, slot: usize) -> usize {
        let c = &self.channels[channel];
        c.slots + slot * c.stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_spec::topology::{Channel, Lane};

    /// Every place of a topology, as (start, end): none overlaps another, and all lie within the region.
    #[test]
    fn places_are_disjoint() {
        let channel = |from, to, lane, slot_bytes| Channel { from, to, lane, slots: 3, slot_bytes };
        let topology = Topology {
            world_size: 3,
            groups: vec![vec![0, 1, 2], vec![2, 0], vec![1]],
            channels: vec![channel(0, 1, Lane::Activation, 1), channel(1, 0, Lane::Gradient, 64)],
        };
        let layout = Layout::new(&topology).unwrap();
        let mut places = vec![(0, size_of::<Header>())];
        places.extend((0..3).map(|r| (Layout::status(r), size_of::<RankStatus>())));
        for (g, ranks) in topology.groups.iter().enumerate() {
            for queue in 0..OPERATION_QUEUES {
                for m in 0..ranks.len() {
                    places.push((layout.counters(g, queue, m), size_of::<MemberCounters>()));
                    if ranks.len() > 1 {
                        places.extend((0..STAGED_PIECES).map(|t| (layout.staging(g, queue, m, t), PIECE_BYTES)));
                    }
                }
            }
        }
        for (i, c) in topology.channels.iter().enumerate() {
            places.push((layout.ring(i), size_of::<Ring>()));
            places.extend((0..3).map(|s| (layout.slot(i, s), size_of::<SlotHeader>() + c.slot_bytes)));
        }
        places.sort_unstable();
        for pair in places.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
        assert!(places.last().is_some_and(|p| p.0 + p.1 <= layout.bytes));
    }

    #[test]
    fn more_than_all_addresses_is_refused() {
        let channel = Channel { from: 0, to: 1, lane: Lane::Gradient, slots: 1 << 40, slot_bytes: 1 << 40 };
        let topology = Topology { channels: vec![channel], ..Topology::everyone(2) };
        assert_eq!(Layout::new(&topology).unwrap_err().text, too_large().text);
    }
}
