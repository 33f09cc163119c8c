//! Collectives over a mesh. Every member sends each other member at least one frame of each operation, so that members that
//! disagree see it, and that no member is ahead of another by more than one operation.
//!
//! A sum goes in pieces; of each piece every member sums its share, in the order of the group's ranks, and sends that to the
//! others: the bits are those of a serial sum, as between ranks of one machine.

use std::ops::Range;

use super::connection_state::{CollectiveFrame, ConnectionState};
use super::endpoint::MeshRank;
use super::frame::FrameTag;
use crate::buffers::Buffers;
use crate::collective::{PIECE_BYTES, RunningCollective, add_part};
use crate::error::{CommError, ElementType, OperationKind};
use half::bf16;
use runner_compute::kernels::cpu::{Real, Stored, simd};

impl RunningCollective<'_, MeshRank> {
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        self.membership.others()
    }

    /// Sends bytes of this operation to a member.
    fn send(&self, member: usize, is_sum: bool, bytes: Vec<u8>) -> Result<(), CommError> {
        let Self { membership, queue, operation, .. } = *self;
        let tag = FrameTag::Collective { group: membership.group, queue, is_sum, operation };
        self.transport.mesh.send(operation.kind, membership.ranks[member], tag, bytes)
    }

    /// Exchanges frames without bytes with all members.
    pub(super) fn synchronize(&self) -> Result<(), CommError> {
        self.others().try_for_each(|member| self.send(member, false, Vec::new()))?;
        self.others().try_for_each(|member| self.receive(member, false).map(drop))
    }

    /// The next frame of a member, of this operation.
    fn receive(&self, member: usize, is_sum: bool) -> Result<CollectiveFrame, CommError> {
        let Self { transport, membership, queue, operation } = *self;
        let peer = membership.ranks[member];
        let key = (peer, membership.group, queue, is_sum);
        let take = |state: &mut ConnectionState| state.collective_frames.get_mut(&key)?.pop_front();
        let frame = transport.mesh.wait_for(operation.kind, queue, peer, take)?;
        self.check_same(member, frame.operation)?;
        Ok(frame)
    }

    /// The bytes of the next frame of a member, which must be `expected`.
    fn receive_bytes(&self, member: usize, is_sum: bool, expected: usize) -> Result<Vec<u8>, CommError> {
        let CollectiveFrame { bytes, .. } = self.receive(member, is_sum)?;
        if bytes.len() == expected {
            return Ok(bytes);
        }
        let what = format!("rank {} sent {} bytes instead of {expected}", self.membership.ranks[member], bytes.len());
        Err(CommError::Request { operation: self.operation.kind, what })
    }

    /// The bytes of piece `piece` of a sum that `member` sums. Such a piece has at most `PIECE_BYTES` bytes for each member.
    fn share_range(&self, piece: usize, member: usize) -> Range<usize> {
        let total = self.operation.bytes as usize;
        let max_length = PIECE_BYTES * self.members();
        let start = (piece * max_length).min(total);
        let share = self.share_of_member((total - start).min(max_length), member);
        start + share.start..start + share.end
    }

    pub(super) fn sum(&self, buffers: &Buffers<'_>) -> Result<(), CommError> {
        let pieces = buffers.bytes.div_ceil(PIECE_BYTES * self.members()).max(1);
        let own = self.own_index();
        let takes = |member: usize| self.operation.root.is_none_or(|root| root == self.membership.ranks[member]);
        // In each round one piece is sent, the one before is summed, and the one before that is taken.
        for round in 0..pieces + 2 {
            if round < pieces {
                for member in self.others() {
                    self.send(member, false, buffers.read(self.share_range(round, member))?)?;
                }
            }
            if let Some(piece) = round.checked_sub(1).filter(|piece| *piece < pieces) {
                let share = self.share_range(piece, own);
                let mut parts = Vec::with_capacity(self.members());
                for member in 0..self.members() {
                    parts.push(if member == own {
                        buffers.read(share.clone())?
                    } else {
                        self.receive_bytes(member, false, share.len())?
                    });
                }
                let total = match buffers.element {
                    ElementType::F64 => total(&parts, f64::from_le_bytes, f64::to_le_bytes),
                    ElementType::Bf16 => total(&parts, bf16::from_le_bytes, bf16::to_le_bytes),
                    _ => total(&parts, f32::from_le_bytes, f32::to_le_bytes),
                };
                for member in self.others().filter(|member| takes(*member)) {
                    self.send(member, true, total.clone())?;
                }
                if takes(own) {
                    buffers.write(share.start, &total)?;
                }
            }
            if let Some(piece) = round.checked_sub(2).filter(|_| takes(own)) {
                for member in self.others() {
                    let share = self.share_range(piece, member);
                    buffers.write(share.start, &self.receive_bytes(member, true, share.len())?)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn broadcast(&self, buffers: &Buffers<'_>) -> Result<(), CommError> {
        let root = self.root();
        self.synchronize()?;
        let mut start = 0;
        while start < buffers.bytes {
            let range = start..(start + PIECE_BYTES).min(buffers.bytes);
            if let Some(root) = root.filter(|root| *root != self.own_index()) {
                buffers.write(start, &self.receive_bytes(root, false, range.len())?)?;
            } else {
                let bytes = buffers.read(range.clone())?;
                self.others().try_for_each(|member| self.send(member, false, bytes.clone()))?;
            }
            start = range.end;
        }
        Ok(())
    }

    pub(super) fn gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        for piece in 0..own.len().div_ceil(PIECE_BYTES).max(1) {
            let range = piece * PIECE_BYTES..((piece + 1) * PIECE_BYTES).min(own.len());
            self.others().try_for_each(|member| self.send(member, false, own[range.clone()].to_vec()))?;
        }
        let mut all = Vec::with_capacity(self.members());
        for member in 0..self.members() {
            if member == self.own_index() {
                all.push(own.to_vec());
                continue;
            }
            let CollectiveFrame { operation, mut bytes } = self.receive(member, false)?;
            while (bytes.len() as u64) < operation.bytes {
                let more = self.receive(member, false)?.bytes;
                if more.is_empty() {
                    let what = format!("rank {} sent fewer bytes than it announced", self.membership.ranks[member]);
                    return Err(CommError::Request { operation: OperationKind::AllGather, what });
                }
                bytes.extend(more);
            }
            all.push(bytes);
        }
        Ok(all)
    }
}

/// The sum of `parts`, in order: the bytes of equally many numbers each. A sum of bf16 numbers is made in f32 and rounded once.
fn total<S: Stored, const N: usize>(parts: &[Vec<u8>], decode: fn([u8; N]) -> S, encode: fn(S) -> [u8; N]) -> Vec<u8> {
    let mut sums = vec![S::Real::ZERO; parts.first().map_or(0, Vec::len) / N];
    for (i, part) in parts.iter().enumerate() {
        let part: Vec<S> = part.as_chunks::<N>().0.iter().map(|bytes| decode(*bytes)).collect();
        simd::vectorize(
            #[inline(always)]
            || add_part(&mut sums, &part, i == 0),
        );
    }
    sums.into_iter().flat_map(|sum| encode(S::store(sum))).collect()
}
