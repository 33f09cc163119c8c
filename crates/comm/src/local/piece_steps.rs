//! The steps of each collective for one piece: stage it, sum it, and take it.

use std::ops::Range;

use super::local_rank::LocalRank;
use crate::buffers::Buffers;
use crate::collective::{Collective, PIECE_BYTES, RunningCollective, add_part};
use crate::error::{CommError, ElementType};
use half::bf16;
use runner_compute::kernels::bytes;
use runner_compute::kernels::cpu::{Real, Stored, simd};
use runner_spec::model::layout::common_range;

type Running<'a> = RunningCollective<'a, LocalRank>;

/// The bytes of piece `piece` within `total`.
fn piece_range(piece: usize, total: usize) -> Range<usize> {
    (piece * PIECE_BYTES).min(total)..((piece + 1) * PIECE_BYTES).min(total)
}

/// The bytes of piece `piece` that `member` sums.
fn share_range(running: &Running<'_>, piece: usize, member: usize) -> Range<usize> {
    running.share_of_member(piece_range(piece, running.operation.bytes as usize).len(), member)
}

/// Copies the bytes of piece `piece` into staging.
fn copy_to_staging(buffers: &Buffers<'_>, piece: usize, to: *mut u8) -> Result<(), CommError> {
    for (tensor, own, offset) in buffers.parts(piece_range(piece, buffers.bytes)) {
        bytes::read(tensor, |from| write_staging(to.wrapping_add(offset), &from[own]))?;
    }
    Ok(())
}

/// Copies into staging that this member owns and that is long enough.
#[expect(unsafe_code, reason = "shared memory")]
fn write_staging(to: *mut u8, from: &[u8]) {
    // SAFETY: called by `stage_piece` alone: the staging is this member's until it is published, and a piece has at most
    // PIECE_BYTES bytes.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
}

/// Copies out of staging that does not change meanwhile.
#[expect(unsafe_code, reason = "shared memory")]
fn read_staging(to: &mut [u8], from: *const u8) {
    // SAFETY: called by `take_piece` alone: the bytes were published (staged or reduced) by their owner, who leaves them alone
    // until this member is done; a piece has at most PIECE_BYTES bytes.
    unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
}

/// In each step `number` is the piece's number in its queue.
impl Collective<'_> {
    /// Writes this member's bytes of a piece into its staging.
    pub(super) fn stage_piece(&self, running: &Running<'_>, piece: usize, number: u64) -> Result<(), CommError> {
        let own = running.own_index();
        let staging = running.staging(own, number);
        match self {
            Self::Sum(buffers) => copy_to_staging(buffers, piece, staging)?,
            Self::Broadcast(buffers) if running.root() == Some(own) => copy_to_staging(buffers, piece, staging)?,
            Self::Gather { own, .. } => write_staging(staging, &own[piece_range(piece, own.len())]),
            Self::Broadcast(_) => {}
        }
        Ok(())
    }

    /// Sums this member's share of a piece that all members have staged.
    pub(super) fn reduce_piece(&self, running: &Running<'_>, piece: usize, number: u64) {
        let Self::Sum(buffers) = self else { return };
        let own = running.own_index();
        let share = share_range(running, piece, own);
        let staged: Vec<*mut u8> =
            (0..running.members()).map(|member| running.staging(member, number).wrapping_add(share.start)).collect();
        match buffers.element {
            ElementType::F64 => sum::<f64>(&staged, own, share.len()),
            ElementType::Bf16 => sum::<bf16>(&staged, own, share.len()),
            _ => sum::<f32>(&staged, own, share.len()),
        }
    }

    /// Reads the result of a piece from the members' staging.
    pub(super) fn take_piece(&mut self, running: &Running<'_>, piece: usize, number: u64) -> Result<(), CommError> {
        let (own, root) = (running.own_index(), running.root());
        match self {
            Self::Sum(buffers) if root.is_none_or(|root| root == own) => {
                for (tensor, own, offset) in buffers.parts(piece_range(piece, buffers.bytes)) {
                    let wanted = offset..offset + own.len();
                    bytes::write(tensor, |to| {
                        let to = &mut to[own.clone()];
                        for member in 0..running.members() {
                            if let Some(both) = common_range(&share_range(running, piece, member), &wanted) {
                                let from = running.staging(member, number).wrapping_add(both.start);
                                read_staging(&mut to[both.start - offset..both.end - offset], from);
                            }
                        }
                    })?;
                }
            }
            Self::Broadcast(buffers) => {
                let Some(root) = root.filter(|root| *root != own) else { return Ok(()) };
                let from = running.staging(root, number);
                for (tensor, own, offset) in buffers.parts(piece_range(piece, buffers.bytes)) {
                    bytes::write(tensor, |to| read_staging(&mut to[own.clone()], from.wrapping_add(offset)))?;
                }
            }
            Self::Gather { all, .. } => {
                if piece == 0 {
                    let length = |member| running.announced_by(member, number).bytes as usize;
                    **all = (0..running.members()).map(|member| vec![0; length(member)]).collect();
                }
                for (member, out) in all.iter_mut().enumerate() {
                    let range = piece_range(piece, out.len());
                    read_staging(&mut out[range], running.staging(member, number));
                }
            }
            Self::Sum(_) => {}
        }
        Ok(())
    }
}

/// `staged[mine]` = the sum of all `staged`, in order; `bytes` of each. A sum of bf16 numbers is made in f32 and rounded once.
#[expect(unsafe_code, reason = "shared memory")]
fn sum<S: Stored>(staged: &[*mut u8], mine: usize, bytes: usize) {
    const BLOCK: usize = 1024;
    simd::vectorize(
        #[inline(always)]
        || {
            let mut total = [S::Real::ZERO; BLOCK];
            let elements = bytes / size_of::<S>();
            for start in (0..elements).step_by(BLOCK) {
                let total = &mut total[..BLOCK.min(elements - start)];
                for (i, &x) in staged.iter().enumerate() {
                    // SAFETY: this member's share of every member's piece: staged by all, so only this member writes it,
                    // below, when these slices are gone. Aligned: staging is, and shares start at whole vectors.
                    let x = unsafe { std::slice::from_raw_parts(x.cast::<S>().add(start), total.len()) };
                    add_part(total, x, i == 0);
                }
                // SAFETY: only this member writes its share; others read it once it is published as reduced.
                let out = unsafe { std::slice::from_raw_parts_mut(staged[mine].cast::<S>().add(start), total.len()) };
                for (out, &t) in out.iter_mut().zip(&*total) {
                    *out = S::store(t);
                }
            }
        },
    );
}
