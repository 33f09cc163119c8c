//! What the collectives do with a piece: sum, copy from the root, gather, nothing.

use std::ops::Range;

use candle_core::Tensor;

use super::collective::Turn;
use super::layout::PIECE;
use crate::error::{CommError, Element};
use runner_compute::kernels::bytes;
use runner_compute::kernels::cpu::{Real, simd};

/// A collective's part in `Turn::pieces`. `number` names the piece in its line.
pub(super) trait Work {
    /// For a group of one: no pieces pass.
    fn alone(&mut self) {}
    /// How many pieces there are, known once all have staged their first.
    fn pieces(&self, turn: &Turn, first: u64) -> usize;
    fn stage(&mut self, turn: &Turn, piece: usize, number: u64) -> Result<(), CommError>;
    /// Whether `combine` does something that `take` of all must wait for.
    fn combines(&self) -> bool {
        false
    }
    fn combine(&mut self, _turn: &Turn, _piece: usize, _number: u64) -> Result<(), CommError> {
        Ok(())
    }
    fn take(&mut self, turn: &Turn, piece: usize, number: u64) -> Result<(), CommError>;
}

/// The bytes of piece `piece` within `total`.
fn piece_range(piece: usize, total: usize) -> Range<usize> {
    (piece * PIECE).min(total)..((piece + 1) * PIECE).min(total)
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (!both.is_empty()).then_some(both)
}

/// Tensors as one run of bytes.
pub struct Buffers<'a> {
    tensors: &'a [Tensor],
    pub element: Element,
    pub bytes: usize,
}

impl<'a> Buffers<'a> {
    /// Says what is wrong with them, if anything.
    pub fn new(tensors: &'a [Tensor]) -> Result<Self, String> {
        let mut element = None;
        for t in tensors {
            let this = Element::of(t.dtype()).ok_or_else(|| format!("no {:?}", t.dtype()))?;
            if *element.get_or_insert(this) != this {
                return Err(format!("tensors of {} and {this} at once", element.unwrap_or(this)));
            }
            if !t.device().is_cpu() || !t.is_contiguous() {
                return Err(format!("a tensor of shape {:?} that is not contiguous on the CPU", t.dims()));
            }
        }
        let bytes = tensors.iter().map(size).sum();
        Ok(Self { tensors, element: element.unwrap_or(Element::Bytes), bytes })
    }

    /// The tensors that have bytes in `range`: which of the tensor's, and where those start in `range`.
    fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (&'a Tensor, Range<usize>, usize)> {
        let mut start = 0;
        self.tensors.iter().filter_map(move |t| {
            let whole = start..start + size(t);
            start = whole.end;
            let both = overlap(&whole, &range)?;
            Some((t, both.start - whole.start..both.end - whole.start, both.start - range.start))
        })
    }

    /// The bytes of `range`, added to `out`.
    pub fn read(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<(), CommError> {
        for (tensor, inside, _) in self.parts(range) {
            bytes::read(tensor, |from| out.extend_from_slice(&from[inside]))?;
        }
        Ok(())
    }

    /// Puts `from` where the bytes from `start` on are.
    pub fn write(&self, start: usize, from: &[u8]) -> Result<(), CommError> {
        for (tensor, inside, at) in self.parts(start..start + from.len()) {
            bytes::write(tensor, |to| to[inside.clone()].copy_from_slice(&from[at..at + inside.len()]))?;
        }
        Ok(())
    }

    fn copy_in(&self, range: Range<usize>, to: *mut u8) -> Result<(), CommError> {
        for (tensor, inside, at) in self.parts(range) {
            bytes::read(tensor, |from| write_staging(to.wrapping_add(at), &from[inside]))?;
        }
        Ok(())
    }
}

fn size(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}

/// Copies into staging that this member owns and that has room for it.
#[expect(unsafe_code, reason = "shared memory")]
fn write_staging(to: *mut u8, from: &[u8]) {
    // SAFETY: callers are `stage`: the place is theirs until published, and a piece has at most PIECE bytes.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
}

/// Copies out of staging that holds still.
#[expect(unsafe_code, reason = "shared memory")]
fn read_staging(to: &mut [u8], from: *const u8) {
    // SAFETY: callers are `take`: the bytes were published (staged or reduced) by their owner, who leaves them alone until
    // this member is done; a piece has at most PIECE bytes.
    unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
}

/// The sum over members, in their order, for all or for the root.
pub(super) struct Sum<'a> {
    pub(super) buffers: Buffers<'a>,
}

impl Sum<'_> {
    /// The bytes of the piece that `member` sums: whole vectors.
    fn share(&self, turn: &Turn, piece: usize, member: usize) -> Range<usize> {
        let length = piece_range(piece, self.buffers.bytes).len();
        let each = length.div_ceil(turn.members()).next_multiple_of(128);
        (each * member).min(length)..(each * (member + 1)).min(length)
    }
}

impl Work for Sum<'_> {
    fn pieces(&self, _: &Turn, _: u64) -> usize {
        self.buffers.bytes.div_ceil(PIECE)
    }

    fn stage(&mut self, turn: &Turn, piece: usize, number: u64) -> Result<(), CommError> {
        self.buffers.copy_in(piece_range(piece, self.buffers.bytes), turn.staging(turn.me(), number))
    }

    fn combines(&self) -> bool {
        true
    }

    fn combine(&mut self, turn: &Turn, piece: usize, number: u64) -> Result<(), CommError> {
        let share = self.share(turn, piece, turn.me());
        let staged: Vec<*mut u8> =
            (0..turn.members()).map(|m| turn.staging(m, number).wrapping_add(share.start)).collect();
        match self.buffers.element {
            Element::F64 => sum::<f64>(&staged, turn.me(), share.len()),
            _ => sum::<f32>(&staged, turn.me(), share.len()),
        }
        Ok(())
    }

    fn take(&mut self, turn: &Turn, piece: usize, number: u64) -> Result<(), CommError> {
        if turn.root().is_some_and(|root| root != turn.me()) {
            return Ok(());
        }
        for (tensor, inside, at) in self.buffers.parts(piece_range(piece, self.buffers.bytes)) {
            let wanted = at..at + inside.len();
            bytes::write(tensor, |to| {
                let to = &mut to[inside.clone()];
                for member in 0..turn.members() {
                    if let Some(both) = overlap(&self.share(turn, piece, member), &wanted) {
                        let from = turn.staging(member, number).wrapping_add(both.start);
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

/// The root's buffer to everyone.
pub(super) struct Broadcast<'a> {
    pub(super) buffers: Buffers<'a>,
}

impl Work for Broadcast<'_> {
    fn pieces(&self, _: &Turn, _: u64) -> usize {
        self.buffers.bytes.div_ceil(PIECE)
    }

    fn stage(&mut self, turn: &Turn, piece: usize, number: u64) -> Result<(), CommError> {
        if turn.root() != Some(turn.me()) {
            return Ok(());
        }
        self.buffers.copy_in(piece_range(piece, self.buffers.bytes), turn.staging(turn.me(), number))
    }

    fn take(&mut self, turn: &Turn, piece: usize, number: u64) -> Result<(), CommError> {
        let Some(root) = turn.root().filter(|root| *root != turn.me()) else { return Ok(()) };
        let from = turn.staging(root, number);
        for (tensor, inside, at) in self.buffers.parts(piece_range(piece, self.buffers.bytes)) {
            bytes::write(tensor, |to| read_staging(&mut to[inside.clone()], from.wrapping_add(at)))?;
        }
        Ok(())
    }
}

/// Everyone's bytes to everyone.
pub(super) struct Gather<'a> {
    pub(super) mine: &'a [u8],
    /// One per member, once it is over.
    pub(super) all: Vec<Vec<u8>>,
    /// The members' lengths.
    lengths: Vec<usize>,
}

impl<'a> Gather<'a> {
    pub(super) fn new(mine: &'a [u8]) -> Self {
        Self { mine, all: Vec::new(), lengths: Vec::new() }
    }
}

impl Work for Gather<'_> {
    fn alone(&mut self) {
        self.all = vec![self.mine.to_vec()];
    }

    fn pieces(&self, turn: &Turn, first: u64) -> usize {
        let pieces = |m| (turn.theirs(m, first).bytes as usize).div_ceil(PIECE);
        (0..turn.members()).map(pieces).max().unwrap_or(1)
    }

    fn stage(&mut self, turn: &Turn, piece: usize, number: u64) -> Result<(), CommError> {
        write_staging(turn.staging(turn.me(), number), &self.mine[piece_range(piece, self.mine.len())]);
        Ok(())
    }

    fn take(&mut self, turn: &Turn, piece: usize, number: u64) -> Result<(), CommError> {
        if piece == 0 {
            self.lengths = (0..turn.members()).map(|m| turn.theirs(m, number).bytes as usize).collect();
            self.all = self.lengths.iter().map(|&n| vec![0; n]).collect();
        }
        for (member, (out, &length)) in self.all.iter_mut().zip(&self.lengths).enumerate() {
            read_staging(&mut out[piece_range(piece, length)], turn.staging(member, number));
        }
        Ok(())
    }
}

/// Nothing: that everyone has staged it is what counts.
pub(super) struct Barrier;

impl Work for Barrier {
    fn pieces(&self, _: &Turn, _: u64) -> usize {
        1
    }

    fn stage(&mut self, _: &Turn, _: usize, _: u64) -> Result<(), CommError> {
        Ok(())
    }

    fn take(&mut self, _: &Turn, _: usize, _: u64) -> Result<(), CommError> {
        Ok(())
    }
}
