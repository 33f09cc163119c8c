//! Collectives over a mesh. Every member sends each other member at least one frame of each operation, so that members that
//! disagree see it, and that nobody is ahead of another by more than one operation.
//!
//! A sum goes in pieces; of each piece every member sums its share, in the order of the group's ranks, and sends that to the
//! others: the bits are those of a serial sum, as between ranks of one machine.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use super::connections::{CollectiveFrame, Connections, lock};
use super::frame::{FrameTag, PIECE_BYTES};
use crate::buffers::Buffers;
use crate::collective::{Collective, Request};
use crate::error::{CommError, ElementType, Operation, OperationKind};
use crate::local::OPERATION_QUEUES;
use runner_compute::kernels::cpu::{Real, simd};

/// How far a rank is with a group's operations of one queue.
#[derive(Debug, Default)]
pub(super) struct QueuePosition {
    operations: u64,
    /// An operation failed half way: members may disagree about what comes next.
    broken: bool,
}

/// This rank in a group.
#[derive(Debug)]
pub(super) struct Membership {
    group: usize,
    pub(super) ranks: Vec<usize>,
    me: usize,
    queues: [Mutex<QueuePosition>; OPERATION_QUEUES],
}

impl Membership {
    /// `None` where `rank` is no member.
    pub(super) fn new(group: usize, ranks: &[usize], rank: usize) -> Option<Self> {
        let me = ranks.iter().position(|r| *r == rank)?;
        Some(Self { group, ranks: ranks.to_vec(), me, queues: Default::default() })
    }
}

/// One operation under way.
struct RunningCollective<'a> {
    shared: &'a Connections,
    membership: &'a Membership,
    queue: usize,
    operation: Operation,
}

/// Runs a collective in a queue of a group's operations.
pub(super) fn run(
    shared: &Connections,
    membership: &Membership,
    queue: usize,
    request: Request,
    work: Collective<'_>,
) -> Result<(), CommError> {
    let Request { kind, element, bytes, root } = request;
    if let Some(root) = root.filter(|r| !membership.ranks.contains(r)) {
        return Err(CommError::NotMember { group: membership.group, rank: root });
    }
    let mut position: MutexGuard<'_, QueuePosition> = lock(&membership.queues[queue]);
    shared.ensure_running(kind)?;
    if position.broken {
        return Err(CommError::Closed { operation: kind });
    }
    let operation = Operation { kind, element, bytes: bytes as u64, root, sequence: position.operations };
    let turn = RunningCollective { shared, membership, queue, operation };
    let result = match work {
        Collective::Sum(buffers) => turn.sum(buffers),
        Collective::Broadcast(buffers) => turn.broadcast(buffers),
        Collective::Gather { own, all } => turn.gather(own).map(|gathered| *all = gathered),
        Collective::Barrier => {
            turn.announce().and_then(|()| turn.others().try_for_each(|m| turn.part(m, false).map(drop)))
        }
    };
    match &result {
        Ok(()) => position.operations = position.operations.wrapping_add(1),
        Err(_) => position.broken = true,
    }
    result
}

impl RunningCollective<'_> {
    fn members(&self) -> usize {
        self.membership.ranks.len()
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.membership.me;
        (0..self.members()).filter(move |member| *member != me)
    }

    /// Sends bytes of this operation to a member.
    fn send(&self, member: usize, sum: bool, bytes: Vec<u8>) -> Result<(), CommError> {
        let Self { membership, queue, operation, .. } = *self;
        let tag = FrameTag::CollectiveFrame { group: membership.group, queue, sum, operation };
        self.shared.send(operation.kind, membership.ranks[member], tag, bytes)
    }

    /// A frame without bytes to all.
    fn announce(&self) -> Result<(), CommError> {
        self.others().try_for_each(|member| self.send(member, false, Vec::new()))
    }

    /// The next frame of a member, of this operation.
    fn part(&self, member: usize, sum: bool) -> Result<CollectiveFrame, CommError> {
        let Self { shared, membership, queue, operation } = *self;
        let peer = membership.ranks[member];
        let key = (peer, membership.group, queue, sum);
        let part = shared.wait_for(operation.kind, queue, peer, |state| state.part(key))?;
        if !operation.matches(&part.operation) {
            let (group, rank) = (membership.group, shared.rank);
            return Err(CommError::Mismatch { group, rank, mine: operation, peer, theirs: part.operation });
        }
        Ok(part)
    }

    /// As `part`, of which `expected` bytes must come.
    fn bytes(&self, member: usize, sum: bool, expected: usize) -> Result<Vec<u8>, CommError> {
        let CollectiveFrame { bytes, .. } = self.part(member, sum)?;
        if bytes.len() == expected {
            return Ok(bytes);
        }
        let what =
            format!("rank {} sent {} bytes where {expected} were expected", self.membership.ranks[member], bytes.len());
        Err(CommError::Request { operation: self.operation.kind, what })
    }

    /// The bytes of piece `piece` that `member` sums: whole vectors, in the order of members.
    fn share(&self, piece: usize, member: usize) -> Range<usize> {
        let total = self.operation.bytes as usize;
        let most = PIECE_BYTES * self.members();
        let start = (piece * most).min(total);
        let length = (total - start).min(most);
        let each = length.div_ceil(self.members()).next_multiple_of(128).min(PIECE_BYTES);
        start + (each * member).min(length)..start + (each * (member + 1)).min(length)
    }

    fn sum(&self, buffers: &Buffers<'_>) -> Result<(), CommError> {
        let pieces = buffers.bytes.div_ceil(PIECE_BYTES * self.members()).max(1);
        let me = self.membership.me;
        let takes = |member: usize| self.operation.root.is_none_or(|root| root == self.membership.ranks[member]);
        // Of three pieces at a time one is sent, one summed, one taken.
        for turn in 0..pieces + 2 {
            if turn < pieces {
                for member in self.others() {
                    self.send(member, false, buffers.read(self.share(turn, member))?)?;
                }
            }
            if let Some(piece) = turn.checked_sub(1).filter(|piece| *piece < pieces) {
                let share = self.share(piece, me);
                let mut parts = Vec::with_capacity(self.members());
                for member in 0..self.members() {
                    parts.push(if member == me {
                        buffers.read(share.clone())?
                    } else {
                        self.bytes(member, false, share.len())?
                    });
                }
                let total = match buffers.element {
                    ElementType::F64 => total(&parts, f64::from_le_bytes, f64::to_le_bytes),
                    _ => total(&parts, f32::from_le_bytes, f32::to_le_bytes),
                };
                for member in self.others().filter(|member| takes(*member)) {
                    self.send(member, true, total.clone())?;
                }
                if takes(me) {
                    buffers.write(share.start, &total)?;
                }
            }
            if let Some(piece) = turn.checked_sub(2).filter(|_| takes(me)) {
                for member in self.others() {
                    let share = self.share(piece, member);
                    buffers.write(share.start, &self.bytes(member, true, share.len())?)?;
                }
            }
        }
        Ok(())
    }

    fn broadcast(&self, buffers: &Buffers<'_>) -> Result<(), CommError> {
        let root = self.membership.ranks.iter().position(|r| Some(*r) == self.operation.root).unwrap_or(0);
        self.announce()?;
        self.others().try_for_each(|member| self.part(member, false).map(drop))?;
        let mut start = 0;
        while start < buffers.bytes {
            let range = start..(start + PIECE_BYTES).min(buffers.bytes);
            if root == self.membership.me {
                let bytes = buffers.read(range.clone())?;
                self.others().try_for_each(|member| self.send(member, false, bytes.clone()))?;
            } else {
                buffers.write(start, &self.bytes(root, false, range.len())?)?;
            }
            start = range.end;
        }
        Ok(())
    }

    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        for piece in 0..mine.len().div_ceil(PIECE_BYTES).max(1) {
            let range = piece * PIECE_BYTES..((piece + 1) * PIECE_BYTES).min(mine.len());
            self.others().try_for_each(|member| self.send(member, false, mine[range.clone()].to_vec()))?;
        }
        let mut all = Vec::with_capacity(self.members());
        for member in 0..self.members() {
            if member == self.membership.me {
                all.push(mine.to_vec());
                continue;
            }
            let CollectiveFrame { operation, mut bytes } = self.part(member, false)?;
            while (bytes.len() as u64) < operation.bytes {
                let more = self.part(member, false)?.bytes;
                if more.is_empty() {
                    let what = format!("rank {} sent less than it said", self.membership.ranks[member]);
                    return Err(CommError::Request { operation: OperationKind::AllGather, what });
                }
                bytes.extend(more);
            }
            all.push(bytes);
        }
        Ok(all)
    }
}

/// The sum of `parts`, in order: bytes of as many numbers each.
fn total<T: Real, const N: usize>(parts: &[Vec<u8>], of: fn([u8; N]) -> T, to: fn(T) -> [u8; N]) -> Vec<u8> {
    let Some((first, rest)) = parts.split_first() else { return Vec::new() };
    let mut sums: Vec<T> = first.as_chunks::<N>().0.iter().map(|bytes| of(*bytes)).collect();
    let mut next: Vec<T> = Vec::with_capacity(sums.len());
    for part in rest {
        next.clear();
        next.extend(part.as_chunks::<N>().0.iter().map(|bytes| of(*bytes)));
        simd::vectorize(
            #[inline(always)]
            || {
                for (sum, &x) in sums.iter_mut().zip(&next) {
                    *sum += x;
                }
            },
        );
    }
    sums.into_iter().flat_map(to).collect()
}
