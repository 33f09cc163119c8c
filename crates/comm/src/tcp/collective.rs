//! Collectives over a mesh. Every member sends each other member at least one frame of each operation, so that members that
//! disagree see it, and that nobody is ahead of another by more than one operation.
//!
//! A sum goes in pieces; of each piece every member sums its share, in the order of the group's ranks, and sends that to the
//! others: the bits are those of a serial sum, as between ranks of one machine.

use std::ops::Range;

use super::connections::{CollectiveFrame, Connections};
use super::frame::{FrameTag, PIECE_BYTES};
use crate::buffers::Buffers;
use crate::collective::{Collective, Request};
use crate::error::{CommError, ElementType, Operation, OperationKind};
use crate::group::Membership;
use runner_compute::kernels::cpu::{Real, simd};

/// One operation of one member while it runs.
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
    membership.run(
        queue,
        request,
        |kind| shared.ensure_running(kind),
        |operation, _| {
            let running = RunningCollective { shared, membership, queue, operation };
            match work {
                Collective::Sum(buffers) => running.sum(buffers),
                Collective::Broadcast(buffers) => running.broadcast(buffers),
                Collective::Gather { own, all } => running.gather(own).map(|gathered| *all = gathered),
                Collective::Barrier => running.synchronize(),
            }
        },
    )
}

impl RunningCollective<'_> {
    fn members(&self) -> usize {
        self.membership.ranks.len()
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        self.membership.others()
    }

    /// Sends bytes of this operation to a member.
    fn send(&self, member: usize, sum: bool, bytes: Vec<u8>) -> Result<(), CommError> {
        let Self { membership, queue, operation, .. } = *self;
        let tag = FrameTag::CollectiveFrame { group: membership.group, queue, sum, operation };
        self.shared.send(operation.kind, membership.ranks[member], tag, bytes)
    }

    /// Exchanges frames without bytes with all members.
    fn synchronize(&self) -> Result<(), CommError> {
        self.others().try_for_each(|member| self.send(member, false, Vec::new()))?;
        self.others().try_for_each(|member| self.receive(member, false).map(drop))
    }

    /// The next frame of a member, of this operation.
    fn receive(&self, member: usize, sum: bool) -> Result<CollectiveFrame, CommError> {
        let Self { shared, membership, queue, operation } = *self;
        let peer = membership.ranks[member];
        let key = (peer, membership.group, queue, sum);
        let part = shared.wait_for(operation.kind, queue, peer, |state| state.take_part(key))?;
        if !operation.matches(&part.operation) {
            let (group, rank) = (membership.group, shared.rank);
            return Err(CommError::Mismatch { group, rank, mine: operation, peer, theirs: part.operation });
        }
        Ok(part)
    }

    /// The bytes of the next frame of a member, which must be `expected`.
    fn receive_bytes(&self, member: usize, sum: bool, expected: usize) -> Result<Vec<u8>, CommError> {
        let CollectiveFrame { bytes, .. } = self.receive(member, sum)?;
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
        let me = self.membership.own_index;
        let takes = |member: usize| self.operation.root.is_none_or(|root| root == self.membership.ranks[member]);
        // In each turn one piece is sent, the one before is summed, and the one before that is taken.
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
                        self.receive_bytes(member, false, share.len())?
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
                    buffers.write(share.start, &self.receive_bytes(member, true, share.len())?)?;
                }
            }
        }
        Ok(())
    }

    fn broadcast(&self, buffers: &Buffers<'_>) -> Result<(), CommError> {
        let root = self.membership.root_index(&self.operation);
        self.synchronize()?;
        let mut start = 0;
        while start < buffers.bytes {
            let range = start..(start + PIECE_BYTES).min(buffers.bytes);
            if let Some(root) = root.filter(|root| *root != self.membership.own_index) {
                buffers.write(start, &self.receive_bytes(root, false, range.len())?)?;
            } else {
                let bytes = buffers.read(range.clone())?;
                self.others().try_for_each(|member| self.send(member, false, bytes.clone()))?;
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
            if member == self.membership.own_index {
                all.push(mine.to_vec());
                continue;
            }
            let CollectiveFrame { operation, mut bytes } = self.receive(member, false)?;
            while (bytes.len() as u64) < operation.bytes {
                let more = self.receive(member, false)?.bytes;
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
