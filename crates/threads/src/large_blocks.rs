//! An allocator for a training step, which frees and allocates large blocks of the same sizes over and over.
//!
//! Giving them back to the kernel in between costs a page fault and a cleared page each time: a fifth of a GPT-2 124M step on two cores. A
//! general allocator that keeps them took half as much memory again as a small run needs. Here large blocks lie side by side in one range
//! of addresses. A block goes to the smallest gap that holds it, neighbouring freed blocks form one gap, and the range grows where no
//! gap is large enough. Giving gaps back to the kernel where they exceed a sixteenth of what is in use made steps with recomputed blocks a
//! third slower.

use std::alloc::{GlobalAlloc, Layout};
use std::ops::Range;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::heap::{count_allocation, count_release};

/// Smaller blocks belong to the inner allocator.
const LARGE_BYTES: usize = 1 << 14;

/// Blocks begin and end at multiples of it.
const UNIT: usize = 128;

/// More of the range is made usable in multiples of a huge page.
const GROWTH: usize = 1 << 21;

/// Blocks at once; further ones belong to the inner allocator.
const MOST_BLOCKS: usize = 1 << 14;

/// Bytes between two blocks, or behind the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gap {
    start: usize,
    size: usize,
}

impl Gap {
    fn end(&self) -> usize {
        self.start + self.size
    }
}

/// Which bytes of a range are in use. Positions are counted from its start.
#[derive(Debug)]
struct Blocks {
    /// In the order of their starts. No two touch, so there is at most one before each block, and one behind the last.
    gaps: [Gap; MOST_BLOCKS + 1],
    gap_count: usize,
    block_count: usize,
    /// The end of the last block or gap: nothing from here on was ever used.
    end: usize,
}

impl Blocks {
    #[expect(clippy::large_stack_arrays, reason = "the start of a static, which is on no stack")]
    const EMPTY: Self =
        Self { gaps: [Gap { start: 0, size: 0 }; MOST_BLOCKS + 1], gap_count: 0, block_count: 0, end: 0 };

    fn gaps(&self) -> &[Gap] {
        &self.gaps[..self.gap_count]
    }

    fn replace_gaps(&mut self, replaced: Range<usize>, gap: Option<Gap>) {
        let next = replaced.start + usize::from(gap.is_some());
        self.gaps.copy_within(replaced.end..self.gap_count, next);
        self.gap_count = self.gap_count + next - replaced.end;
        if let Some(gap) = gap {
            self.gaps[replaced.start] = gap;
        }
    }

    /// The start of a new block of `size` bytes, if it ends at `limit` or before it.
    fn take(&mut self, size: usize, limit: usize) -> Option<usize> {
        if self.block_count == MOST_BLOCKS {
            return None;
        }
        let fitting = self.gaps().iter().enumerate().filter(|(_, gap)| gap.size >= size);
        let index = match fitting.min_by_key(|(_, gap)| gap.size) {
            Some((index, _)) => index,
            None => self.grow(size, limit)?,
        };
        let start = self.gaps[index].start;
        self.block_count += 1;
        self.take_from_gap(index, size);
        Some(start)
    }

    /// Makes the last gap, or a new one behind everything, as large as a block of `size` bytes needs, and returns its index.
    fn grow(&mut self, size: usize, limit: usize) -> Option<usize> {
        let last = self.gaps().last().copied().filter(|gap| gap.end() == self.end);
        let gap = last.unwrap_or(Gap { start: self.end, size: 0 });
        self.end = gap.start.checked_add(size).filter(|&end| end <= limit)?;
        let index = self.gap_count - usize::from(last.is_some());
        self.replace_gaps(index..self.gap_count, Some(Gap { size, ..gap }));
        Some(index)
    }

    /// Puts `size` bytes from the start of a gap to use.
    fn take_from_gap(&mut self, index: usize, size: usize) {
        let gap = self.gaps[index];
        let rest = Gap { start: gap.start + size, size: gap.size - size };
        self.replace_gaps(index..index + 1, (rest.size > 0).then_some(rest));
    }

    /// Makes a block longer, if the gap behind it allows that.
    fn extend(&mut self, end: usize, more: usize) -> bool {
        match self.gaps().binary_search_by_key(&end, |gap| gap.start) {
            Ok(index) if self.gaps[index].size >= more => {
                self.take_from_gap(index, more);
                true
            }
            _ => false,
        }
    }

    fn free(&mut self, block: Range<usize>) {
        self.block_count -= 1;
        self.free_part(block);
    }

    /// Makes a gap of a block or of the end of one.
    fn free_part(&mut self, part: Range<usize>) {
        let index = self.gaps().partition_point(|gap| gap.start < part.start);
        let before = index.checked_sub(1).map(|index| self.gaps[index]).filter(|gap| gap.end() == part.start);
        let behind = self.gaps().get(index).copied().filter(|gap| gap.start == part.end);
        let mut gap = Gap { start: part.start, size: part.len() };
        for neighbour in [before, behind].into_iter().flatten() {
            gap.start = gap.start.min(neighbour.start);
            gap.size += neighbour.size;
        }
        let replaced = index - usize::from(before.is_some())..index + usize::from(behind.is_some());
        self.replace_gaps(replaced, Some(gap));
    }
}

/// A range of addresses, and the blocks in it.
#[derive(Debug)]
struct Reserved {
    base: usize,
    size: usize,
    /// Bytes from the start that may be read and written.
    usable: usize,
    blocks: Blocks,
}

impl Reserved {
    const NOTHING: Self = Self { base: 0, size: 0, usable: 0, blocks: Blocks::EMPTY };

    /// The address of a new block, and the bytes of its start that may not be zero.
    fn take(&mut self, size: usize) -> Option<(usize, usize)> {
        if self.base == 0 {
            (self.base, self.size) = reserve_addresses()?;
        }
        let never_used = self.blocks.end;
        let start = self.blocks.take(size, self.size)?;
        if self.blocks.end > self.usable {
            let usable = self.blocks.end.next_multiple_of(GROWTH).min(self.size);
            if !make_usable(self.base + self.usable, usable - self.usable) {
                self.blocks.free(start..start + size);
                return None;
            }
            self.usable = usable;
        }
        Some((self.base + start, never_used.saturating_sub(start).min(size)))
    }

    /// The position of a block's address, unless the inner allocator has it.
    fn position(&self, address: *mut u8) -> Option<usize> {
        address.addr().checked_sub(self.base).filter(|&position| position < self.size)
    }
}

/// An allocator of large blocks; `A` has the small ones.
#[derive(Debug)]
pub struct LargeBlocks<A> {
    small: A,
    reserved: Mutex<Reserved>,
}

impl<A> LargeBlocks<A> {
    pub const fn new(small: A) -> Self {
        Self { small, reserved: Mutex::new(Reserved::NOTHING) }
    }

    fn reserved(&self) -> MutexGuard<'_, Reserved> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, layout: Layout) -> Option<(*mut u8, usize)> {
        let (address, written) = self.reserved().take(large_size(layout)?)?;
        count_allocation(layout.size());
        Some((ptr::with_exposed_provenance_mut(address), written))
    }
}

/// The bytes of a large block of `layout`; `None` for a small one.
fn large_size(layout: Layout) -> Option<usize> {
    (layout.size() >= LARGE_BYTES && layout.align() <= UNIT).then(|| layout.size().next_multiple_of(UNIT))
}

#[expect(unsafe_code, reason = "an allocator")]
// SAFETY: a block is either of `small`, which gets its calls as they came, or a part of the range that no other block has. Nothing here
// allocates or panics.
unsafe impl<A: GlobalAlloc> GlobalAlloc for LargeBlocks<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.take(layout) {
            Some((address, _)) => address,
            // SAFETY: the caller's promise, passed on.
            None => unsafe { self.small.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some((address, written)) = self.take(layout) else {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.small.alloc_zeroed(layout) };
        };
        // SAFETY: the block has at least these bytes.
        unsafe { address.write_bytes(0, written) };
        address
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if let Some(size) = large_size(layout) {
            let mut reserved = self.reserved();
            if let Some(start) = reserved.position(ptr) {
                reserved.blocks.free(start..start + size);
                count_release(layout.size());
                return;
            }
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.small.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller's promise that the size is valid.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (large_size(layout), large_size(new)) {
            // SAFETY: the caller's promise, passed on.
            (None, None) => return unsafe { self.small.realloc(ptr, layout, new_size) },
            (Some(old), Some(new)) => {
                let mut reserved = self.reserved();
                if let Some(start) = reserved.position(ptr) {
                    if new < old {
                        reserved.blocks.free_part(start + new..start + old);
                    }
                    if new <= old || reserved.blocks.extend(start + old, new - old) {
                        count_release(layout.size());
                        count_allocation(new_size);
                        return ptr;
                    }
                }
            }
            _ => {}
        }
        // SAFETY: both blocks have at least the bytes that are copied, and the old one is the caller's.
        unsafe {
            let address = self.alloc(new);
            if !address.is_null() {
                address.copy_from_nonoverlapping(ptr, layout.size().min(new_size));
                self.dealloc(ptr, layout);
            }
            address
        }
    }
}

/// The address and size of a range that no memory belongs to yet: as many bytes as the machine has, or fewer if no more are granted.
#[expect(unsafe_code, reason = "FFI")]
fn reserve_addresses() -> Option<(usize, usize)> {
    // SAFETY: neither call touches memory.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let mut size = usize::try_from(pages).ok()?.checked_mul(usize::try_from(page).ok()?)?;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    while size >= GROWTH {
        size = size.next_multiple_of(GROWTH);
        // SAFETY: a new mapping touches no other memory.
        let address = unsafe { libc::mmap(ptr::null_mut(), size + GROWTH, libc::PROT_NONE, kind, -1, 0) };
        if address != libc::MAP_FAILED {
            #[cfg(target_os = "linux")]
            // SAFETY: advice, which changes no content.
            unsafe {
                // Steps are a few percent faster with huge pages; without them nothing else changes.
                libc::madvise(address, size + GROWTH, libc::MADV_HUGEPAGE);
            }
            return Some((address.expose_provenance().next_multiple_of(GROWTH), size));
        }
        size /= 2;
    }
    None
}

/// Lets a part of the range be read and written.
#[expect(unsafe_code, reason = "FFI")]
fn make_usable(address: usize, size: usize) -> bool {
    let address = ptr::with_exposed_provenance_mut(address);
    // SAFETY: the part belongs to the range, and no block has it yet.
    unsafe { libc::mprotect(address, size, libc::PROT_READ | libc::PROT_WRITE) == 0 }
}

#[cfg(test)]
mod tests {
    use std::alloc::System;
    use std::collections::BTreeMap;

    use super::*;
    use crate::heap::{peak_bytes, restart_peak};

    /// A fixed sequence that looks random.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % bound
        }
    }

    /// Blocks and gaps fill the range up to its end, and no two gaps touch.
    fn check(blocks: &Blocks, live: &BTreeMap<usize, usize>) {
        let mut parts: Vec<_> = live.iter().map(|(&start, &size)| (start..start + size, false)).collect();
        parts.extend(blocks.gaps().iter().map(|gap| (gap.start..gap.end(), true)));
        parts.sort_by_key(|(part, _)| part.start);
        let mut end = 0;
        for (index, (part, is_gap)) in parts.iter().enumerate() {
            assert!(part.start == end && part.end > end, "{part:?} follows {end}");
            assert!(index == 0 || !(*is_gap && parts[index - 1].1), "gaps touch at {end}");
            end = part.end;
        }
        assert_eq!(end, blocks.end);
        assert_eq!(live.len(), blocks.block_count);
    }

    #[test]
    fn blocks_and_gaps_fill_the_range() {
        const MIB: usize = 1 << 20;
        let (mut numbers, mut live) = (Numbers(1), BTreeMap::new());
        let mut blocks = Box::new(Blocks::EMPTY);
        for round in 0..20_000 {
            let pick = |numbers: &mut Numbers, live: &BTreeMap<usize, usize>| {
                live.iter().nth(numbers.below(live.len())).map(|(&start, &size)| (start, size)).unwrap()
            };
            match numbers.below(if live.len() < 40 { 8 } else { 16 }) {
                0..5 => {
                    let size = (1 + numbers.below(64)) * MIB / 8;
                    match blocks.take(size, 300 * MIB) {
                        Some(start) => assert_eq!(live.insert(start, size), None),
                        None => assert!(blocks.gaps().iter().all(|gap| gap.size < size), "round {round}"),
                    }
                }
                _ if live.is_empty() => {}
                5 => {
                    let ((start, size), more) = (pick(&mut numbers, &live), (1 + numbers.below(16)) * UNIT);
                    if blocks.extend(start + size, more) {
                        live.insert(start, size + more);
                    }
                }
                6 => {
                    let (start, size) = pick(&mut numbers, &live);
                    blocks.free_part(start + size - UNIT..start + size);
                    live.insert(start, size - UNIT);
                }
                _ => {
                    let (start, size) = pick(&mut numbers, &live);
                    blocks.free(start..start + size);
                    live.remove(&start);
                }
            }
            check(&blocks, &live);
        }
        for (start, size) in std::mem::take(&mut live) {
            blocks.free(start..start + size);
        }
        check(&blocks, &live);
        assert_eq!(blocks.gap_count, 1, "everything that was freed is one gap");
    }

    #[test]
    fn more_blocks_than_the_table_has_are_refused() {
        let mut blocks = Box::new(Blocks::EMPTY);
        let starts: Vec<_> = (0..MOST_BLOCKS).map(|_| blocks.take(UNIT, usize::MAX).unwrap()).collect();
        assert_eq!(blocks.take(UNIT, usize::MAX), None);
        starts.iter().step_by(2).for_each(|&start| blocks.free(start..start + UNIT));
        assert_eq!((blocks.gap_count, blocks.take(UNIT, usize::MAX)), (MOST_BLOCKS / 2, Some(0)));
    }

    #[test]
    #[expect(unsafe_code, reason = "an allocator's own test")]
    fn contents_stay_zeroed_blocks_are_zero_and_bytes_are_counted() {
        let allocator = LargeBlocks::new(System);
        let layout = |size| Layout::from_size_align(size, 64).unwrap();
        let sizes = [100, LARGE_BYTES, 3 * LARGE_BYTES + 8, 40 << 20, LARGE_BYTES + 1, 100];
        let before = restart_peak().unwrap_or(0);
        // SAFETY: layouts are not of size zero, each pointer is given back with the layout that it has then, and only its bytes are read
        // and written.
        unsafe {
            let (small, large) = (allocator.alloc(layout(100)), allocator.alloc(layout(1 << 20)));
            let large = allocator.realloc(large, layout(1 << 20), 3 << 20);
            assert_eq!(restart_peak().unwrap() - before, 3 << 20);
            allocator.dealloc(small, layout(100));
            allocator.dealloc(large, layout(3 << 20));
            assert_eq!((peak_bytes().unwrap() - before, restart_peak().unwrap() - before), (3 << 20, 0));
            for _ in 0..3 {
                let mut address = allocator.alloc_zeroed(layout(sizes[0]));
                for (&old, &new) in sizes.iter().zip(&sizes[1..]) {
                    let zeroed = allocator.alloc_zeroed(layout(new));
                    assert!(std::slice::from_raw_parts(zeroed, new).iter().all(|&byte| byte == 0), "{new}");
                    zeroed.write_bytes(255, new);
                    std::slice::from_raw_parts_mut(address, old).iter_mut().zip(0u8..251).for_each(|(to, n)| *to = n);
                    address = allocator.realloc(address, layout(old), new);
                    let kept = old.min(new);
                    assert!(std::slice::from_raw_parts(address, kept).iter().zip(0u8..251).all(|(&byte, n)| byte == n));
                    allocator.dealloc(zeroed, layout(new));
                }
                allocator.dealloc(address, layout(sizes[5]));
            }
        }
        assert_eq!(allocator.reserved().blocks.block_count, 0);
    }
}
