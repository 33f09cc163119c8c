//! What each collective does with a piece: sum it, copy it from the root, gather it, or nothing.

use std::ops::Range;

use super::collective::{PieceSteps, RunningCollective};
use super::layout::PIECE_BYTES;
use crate::buffers::{Buffers, overlap};
use crate::error::{CommError, ElementType};
use runner_compute::kernels::bytes;
use runner_compute::kernels::cpu::{Real, simd};

/// The bytes of piece `piece` within `total`.
fn piece_range(piece: usize, total: usize) -> Range<usize> {
    (piece * PIECE_BYTES).min(total)..((piece + 1) * PIECE_BYTES).min(total)
}

/// Copies the bytes of `range` into staging.
fn copy_to_staging(buffers: &Buffers<'_>, range: Range<usize>, to: *mut u8) -> Result<(), CommError> {
    for (tensor, inside, at) in buffers.parts(range) {
        bytes::read(tensor, |from| write_staging(to.wrapping_add(at), &from[inside]))?;
    }
    Ok(())
}

/// Copies into staging that this member owns and that has room for it.
#[expect(unsafe_code, reason = "shared memory")]
fn write_staging(to: *mut u8, from: &[u8]) {
    // SAFETY: callers are `stage`: the place is announced_by until published, and a piece has at most PIECE_BYTES bytes.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
}

/// Copies out of staging that holds still.
#[expect(unsafe_code, reason = "shared memory")]
fn read_staging(to: &mut [u8], from: *const u8) {
    // SAFETY: callers are `take`: the bytes were published (staged or reduced) by their owner, who leaves them alone until
    // this member is done; a piece has at most PIECE_BYTES bytes.
    unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
}

/// Sums over members, in their order, for all members or for the root.
pub(super) struct Sum<'a> {
    pub(super) buffers: &'a Buffers<'a>,
}

impl Sum<'_> {
    /// The bytes of the piece that `member` sums: whole vectors.
    fn share(&self, running: &RunningCollective, piece: usize, member: usize) -> Range<usize> {
        let length = piece_range(piece, self.buffers.bytes).len();
        let each = length.div_ceil(running.members()).next_multiple_of(128);
        (each * member).min(length)..(each * (member + 1)).min(length)
    }
}

impl PieceSteps for Sum<'_> {
    fn pieces(&self, _: &RunningCollective, _: u64) -> usize {
        self.buffers.bytes.div_ceil(PIECE_BYTES)
    }

    fn stage(&mut self, running: &RunningCollective, piece: usize, number: u64) -> Result<(), CommError> {
        copy_to_staging(self.buffers, piece_range(piece, self.buffers.bytes), running.staging(running.me(), number))
    }

    fn is_reduction(&self) -> bool {
        true
    }

    fn reduce(&mut self, running: &RunningCollective, piece: usize, number: u64) -> Result<(), CommError> {
        let share = self.share(running, piece, running.me());
        let staged: Vec<*mut u8> =
            (0..running.members()).map(|m| running.staging(m, number).wrapping_add(share.start)).collect();
        match self.buffers.element {
            ElementType::F64 => sum::<f64>(&staged, running.me(), share.len()),
            _ => sum::<f32>(&staged, running.me(), share.len()),
        }
        Ok(())
    }

    fn take(&mut self, running: &RunningCollective, piece: usize, number: u64) -> Result<(), CommError> {
        if running.root().is_some_and(|root| root != running.me()) {
            return Ok(());
        }
        for (tensor, inside, at) in self.buffers.parts(piece_range(piece, self.buffers.bytes)) {
            let wanted = at..at + inside.len();
            bytes::write(tensor, |to| {
                let to = &mut to[inside.clone()];
                for member in 0..running.members() {
                    if let Some(both) = overlap(&self.share(running, piece, member), &wanted) {
                        let from = running.staging(member, number).wrapping_add(both.start);
                        read_staging(&mut to[both.start - at..both.end - at], from);
                    }
                }
            })?;
        }
        Ok(())
    }
}

/// `staged[mine]` = the sum of all `staged`, in order; `bytes` of each.
#[expect(unsafe_code, reason = "shared memory")]
fn sum<T: Real>(staged: &[*mut u8], mine: usize, bytes: usize) {
    const BLOCK: usize = 1024;
    simd::vectorize(
        #[inline(always)]
        || {
            let mut total = [T::ZERO; BLOCK];
            let elements = bytes / size_of::<T>();
            for start in (0..elements).step_by(BLOCK) {
                let total = &mut total[..BLOCK.min(elements - start)];
                for (i, &x) in staged.iter().enumerate() {
                    // SAFETY: this member's share of every member's piece: staged by all, so nobody writes it but this
                    // member, below, when these slices are gone. Aligned: staging is, and shares start at whole vectors.
                    let x = unsafe { std::slice::from_raw_parts(x.cast::<T>().add(start), total.len()) };
                    if i == 0 {
                        total.copy_from_slice(x);
                    } else {
                        for (t, &x) in total.iter_mut().zip(x) {
                            *t += x;
                        }
                    }
                }
                // SAFETY: as above; others read this share only once it is published as reduced.
                unsafe {
                    let out = staged[mine].cast::<T>().add(start);
                    std::ptr::copy_nonoverlapping(total.as_ptr(), out, total.len());
                }
            }
        },
    );
}

/// Copies the root's buffer to all members.
pub(super) struct Broadcast<'a> {
    pub(super) buffers: &'a Buffers<'a>,
}

impl PieceSteps for Broadcast<'_> {
    fn pieces(&self, _: &RunningCollective, _: u64) -> usize {
        self.buffers.bytes.div_ceil(PIECE_BYTES)
    }

    fn stage(&mut self, running: &RunningCollective, piece: usize, number: u64) -> Result<(), CommError> {
        if running.root() != Some(running.me()) {
            return Ok(());
        }
        copy_to_staging(self.buffers, piece_range(piece, self.buffers.bytes), running.staging(running.me(), number))
    }

    fn take(&mut self, running: &RunningCollective, piece: usize, number: u64) -> Result<(), CommError> {
        let Some(root) = running.root().filter(|root| *root != running.me()) else { return Ok(()) };
        let from = running.staging(root, number);
        for (tensor, inside, at) in self.buffers.parts(piece_range(piece, self.buffers.bytes)) {
            bytes::write(tensor, |to| read_staging(&mut to[inside.clone()], from.wrapping_add(at)))?;
        }
        Ok(())
    }
}

/// Gathers the bytes of all members on all members.
pub(super) struct Gather<'a> {
    own: &'a [u8],
    /// One per member, when all pieces are taken.
    all: &'a mut Vec<Vec<u8>>,
    /// The members' lengths.
    lengths: Vec<usize>,
}

impl<'a> Gather<'a> {
    pub(super) fn new(own: &'a [u8], all: &'a mut Vec<Vec<u8>>) -> Self {
        Self { own, all, lengths: Vec::new() }
    }
}

impl PieceSteps for Gather<'_> {
    fn pieces(&self, running: &RunningCollective, first: u64) -> usize {
        let pieces = |m| (running.announced_by(m, first).bytes as usize).div_ceil(PIECE_BYTES);
        (0..running.members()).map(pieces).max().unwrap_or(1)
    }

    fn stage(&mut self, running: &RunningCollective, piece: usize, number: u64) -> Result<(), CommError> {
        write_staging(running.staging(running.me(), number), &self.own[piece_range(piece, self.own.len())]);
        Ok(())
    }

    fn take(&mut self, running: &RunningCollective, piece: usize, number: u64) -> Result<(), CommError> {
        if piece == 0 {
            self.lengths = (0..running.members()).map(|m| running.announced_by(m, number).bytes as usize).collect();
            *self.all = self.lengths.iter().map(|&n| vec![0; n]).collect();
        }
        for (member, (out, &length)) in self.all.iter_mut().zip(&self.lengths).enumerate() {
            read_staging(&mut out[piece_range(piece, length)], running.staging(member, number));
        }
        Ok(())
    }
}

/// A barrier moves no bytes: it waits until all members have staged its piece.
pub(super) struct Barrier;

impl PieceSteps for Barrier {
    fn pieces(&self, _: &RunningCollective, _: u64) -> usize {
        1
    }

    fn stage(&mut self, _: &RunningCollective, _: usize, _: u64) -> Result<(), CommError> {
        Ok(())
    }

    fn take(&mut self, _: &RunningCollective, _: usize, _: u64) -> Result<(), CommError> {
        Ok(())
    }
}
