//! Collectives over a mesh. Every member sends each other member at least one frame of each operation, so that members that
//! disagree see it, and that nobody is ahead of another by more than one operation.
//!
//! A sum goes in pieces; of each piece every member sums its share, in the order of the group's ranks, and sends that to the
//! others: the bits are those of a serial sum, as between ranks of one machine.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use super::state::{Part, Shared, lock};
use super::wire::{PIECE, Tag};
use crate::error::{CommError, Element, Kind, Operation};
use crate::local::{Buffers, LINES, Request};
use runner_compute::kernels::cpu::{Real, simd};

/// How far a rank is with a group's operations of one line.
#[derive(Debug, Default)]
pub(super) struct Line {
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
    lines: [Mutex<Line>; LINES],
}

impl Membership {
    /// `None` where `rank` is no member.
    pub(super) fn new(group: usize, ranks: &[usize], rank: usize) -> Option<Self> {
        let me = ranks.iter().position(|r| *r == rank)?;
        Some(Self { group, ranks: ranks.to_vec(), me, lines: Default::default() })
    }
}

/// One operation under way.
struct Turn<'a> {
    shared: &'a Shared,
    membership: &'a Membership,
    line: usize,
    operation: Operation,
}

/// What a collective does with its members.
pub(super) enum Work<'a, 'b> {
    Sum(&'a Buffers<'b>),
    Broadcast(&'a Buffers<'b>),
    Gather { mine: &'a [u8], all: &'a mut Vec<Vec<u8>> },
    Barrier,
}

/// Runs a collective in a line of a group's operations.
pub(super) fn run(
    shared: &Shared,
    membership: &Membership,
    line: usize,
    request: Request,
    work: Work<'_, '_>,
) -> Result<(), CommError> {
    let Request { kind, element, bytes, root } = request;
    if let Some(root) = root.filter(|r| !membership.ranks.contains(r)) {
        return Err(CommError::NotMember { group: membership.group, rank: root });
    }
    let mut position: MutexGuard<'_, Line> = lock(&membership.lines[line]);
    shared.alive(kind)?;
    if position.broken {
        return Err(CommError::Closed { operation: kind });
    }
    let operation = Operation { kind, element, bytes: bytes as u64, root, sequence: position.operations };
    let turn = Turn { shared, membership, line, operation };
    let result = match work {
        Work::Gather { mine, all } if turn.members() == 1 => {
            *all = vec![mine.to_vec()];
            Ok(())
        }
        _ if turn.members() == 1 => Ok(()),
        Work::Sum(buffers) => turn.sum(buffers),
        Work::Broadcast(buffers) => turn.broadcast(buffers),
        Work::Gather { mine, all } => turn.gather(mine).map(|gathered| *all = gathered),
        Work::Barrier => turn.announce().and_then(|()| turn.others().try_for_each(|m| turn.part(m, false).map(drop))),
    };
    match &result {
        Ok(()) => position.operations = position.operations.wrapping_add(1),
        Err(_) => position.broken = true,
    }
    result
}

impl Turn<'_> {
    fn members(&self) -> usize {
        self.membership.ranks.len()
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.membership.me;
        (0..self.members()).filter(move |member| *member != me)
    }

    /// Sends bytes of this operation to a member.
    fn send(&self, member: usize, sum: bool, bytes: Vec<u8>) -> Result<(), CommError> {
        let Self { membership, line, operation, .. } = *self;
        let tag = Tag::Part { group: membership.group, line, sum, operation };
        self.shared.send(operation.kind, membership.ranks[member], tag, bytes)
    }

    /// A frame without bytes to all.
    fn announce(&self) -> Result<(), CommError> {
        self.others().try_for_each(|member| self.send(member, false, Vec::new()))
    }

    /// The next frame of a member, of this operation.
    fn part(&self, member: usize, sum: bool) -> Result<Part, CommError> {
        let Self { shared, membership, line, operation } = *self;
        let peer = membership.ranks[member];
        let key = (peer, membership.group, line, sum);
        let part = shared.wait_for(operation.kind, line, peer, |state| state.part(key))?;
        if !operation.meets(&part.operation) {
            let (group, rank) = (membership.group, shared.rank);
            return Err(CommError::Mismatch { group, rank, mine: operation, peer, theirs: part.operation });
        }
        Ok(part)
    }

    /// As `part`, of which `expected` bytes must come.
    fn bytes(&self, member: usize, sum: bool, expected: usize) -> Result<Vec<u8>, CommError> {
        let Part { bytes, .. } = self.part(member, sum)?;
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
        let most = PIECE * self.members();
        let start = (piece * most).min(total);
        let length = (total - start).min(most);
        let each = length.div_ceil(self.members()).next_multiple_of(128).min(PIECE);
        start + (each * member).min(length)..start + (each * (member + 1)).min(length)
    }

    fn sum(&self, buffers: &Buffers<'_>) -> Result<(), CommError> {
        let pieces = buffers.bytes.div_ceil(PIECE * self.members()).max(1);
        let me = self.membership.me;
        let takes = |member: usize| self.operation.root.is_none_or(|root| root == self.membership.ranks[member]);
        // Of three pieces at a time one is sent, one summed, one taken.
        for turn in 0..pieces + 2 {
            if turn < pieces {
                for member in self.others() {
                    let mut bytes = Vec::new();
                    buffers.read(self.share(turn, member), &mut bytes)?;
                    self.send(member, false, bytes)?;
                }
            }
            if let Some(piece) = turn.checked_sub(1).filter(|piece| *piece < pieces) {
                let share = self.share(piece, me);
                let mut parts = Vec::with_capacity(self.members());
                for member in 0..self.members() {
                    parts.push(if member == me {
                        let mut own = Vec::new();
                        buffers.read(share.clone(), &mut own)?;
                        own
                    } else {
                        self.bytes(member, false, share.len())?
                    });
                }
                let total = match buffers.element {
                    Element::F64 => total(&parts, f64::from_le_bytes, f64::to_le_bytes),
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
            let range = start..(start + PIECE).min(buffers.bytes);
            if root == self.membership.me {
                let mut bytes = Vec::new();
                buffers.read(range.clone(), &mut bytes)?;
                self.others().try_for_each(|member| self.send(member, false, bytes.clone()))?;
            } else {
                buffers.write(start, &self.bytes(root, false, range.len())?)?;
            }
            start = range.end;
        }
        Ok(())
    }

    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        for piece in 0..mine.len().div_ceil(PIECE).max(1) {
            let range = piece * PIECE..((piece + 1) * PIECE).min(mine.len());
            self.others().try_for_each(|member| self.send(member, false, mine[range.clone()].to_vec()))?;
        }
        let mut all = Vec::with_capacity(self.members());
        for member in 0..self.members() {
            if member == self.membership.me {
                all.push(mine.to_vec());
                continue;
            }
            let Part { operation, mut bytes } = self.part(member, false)?;
            while (bytes.len() as u64) < operation.bytes {
                let more = self.part(member, false)?.bytes;
                if more.is_empty() {
                    let what = format!("rank {} sent less than it said", self.membership.ranks[member]);
                    return Err(CommError::Request { operation: Kind::AllGather, what });
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
