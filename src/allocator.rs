//! The allocator of the program: mimalloc for small blocks, and pages of the kernel for large ones, which hold tensors.
//!
//! A training step frees and allocates blocks of the same sizes over and over. Giving them back to the kernel in between costs a page fault
//! and a cleared page each time: a fifth of a GPT-2 124M step on two cores. An allocator that keeps all of them takes half as much memory
//! again as a small run needs. So freed blocks are kept for requests of the same size, but only while all blocks together take no more
//! than were in use at once before. A run then takes what its plan counts.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Smaller blocks are mimalloc's.
const LARGE_BYTES: usize = 1 << 16;

/// Freed blocks that are kept at most.
const MOST_KEPT: usize = 1024;

/// Blocks in use and freed ones.
struct Blocks {
    bytes_in_use: usize,
    most_in_use: usize,
    bytes_kept: usize,
    /// Address and size, the oldest first.
    kept: [(usize, usize); MOST_KEPT],
    count: usize,
}

impl Blocks {
    const EMPTY: Self = Self { bytes_in_use: 0, most_in_use: 0, bytes_kept: 0, kept: [(0, 0); MOST_KEPT], count: 0 };

    /// Counts a request, and returns a kept block for it. Without one, makes room for a new block.
    fn take(&mut self, size: usize) -> Option<*mut u8> {
        self.bytes_in_use += size;
        self.most_in_use = self.most_in_use.max(self.bytes_in_use);
        let found = self.kept[..self.count].iter().rposition(|&(_, kept)| kept == size);
        if let Some(index) = found {
            return Some(self.remove(index).0);
        }
        while self.count > 0 && self.bytes_in_use + self.bytes_kept > self.most_in_use {
            self.release_oldest();
        }
        None
    }

    fn keep(&mut self, address: *mut u8, size: usize) {
        self.bytes_in_use -= size;
        if self.count == MOST_KEPT {
            self.release_oldest();
        }
        self.kept[self.count] = (address.expose_provenance(), size);
        self.count += 1;
        self.bytes_kept += size;
    }

    fn remove(&mut self, index: usize) -> (*mut u8, usize) {
        let (address, size) = self.kept[index];
        self.kept.copy_within(index + 1..self.count, index);
        self.count -= 1;
        self.bytes_kept -= size;
        (ptr::with_exposed_provenance_mut(address), size)
    }

    fn release_oldest(&mut self) {
        let (address, size) = self.remove(0);
        release_pages(address, size);
    }
}

/// An allocator that keeps freed large blocks; `A` has the small ones.
pub(crate) struct KeepingAllocator<A> {
    small: A,
    blocks: Mutex<Blocks>,
}

impl<A> KeepingAllocator<A> {
    pub(crate) const fn new(small: A) -> Self {
        Self { small, blocks: Mutex::new(Blocks::EMPTY) }
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of `size` bytes, and whether it is new and therefore zero.
    fn alloc_large(&self, size: usize) -> (*mut u8, bool) {
        let kept = self.blocks().take(size);
        if let Some(address) = kept {
            return (address, false);
        }
        let address = map_pages(size);
        if address.is_null() {
            self.blocks().bytes_in_use -= size;
        }
        (address, true)
    }
}

/// The bytes of a large block of `layout`: sizes that differ by an eighth at most share blocks. `None` for a small one.
fn large_size(layout: Layout) -> Option<usize> {
    const PAGE: usize = 1 << 12;
    let size = layout.size();
    if size < LARGE_BYTES || layout.align() > PAGE {
        return None;
    }
    let step = (size.next_power_of_two() / 16).max(PAGE);
    Some(size.next_multiple_of(step))
}

#[expect(unsafe_code, reason = "an allocator")]
// SAFETY: a block is either of `small`, which gets its calls as they came, or of pages that no other block has. Nothing here allocates or
// panics.
unsafe impl<A: GlobalAlloc> GlobalAlloc for KeepingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match large_size(layout) {
            Some(size) => self.alloc_large(size).0,
            // SAFETY: the caller's promise, passed on.
            None => unsafe { self.small.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(size) = large_size(layout) else {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.small.alloc_zeroed(layout) };
        };
        let (address, is_zero) = self.alloc_large(size);
        if !is_zero {
            // SAFETY: the block has at least this size.
            unsafe { address.write_bytes(0, layout.size()) };
        }
        address
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        match large_size(layout) {
            Some(size) => self.blocks().keep(ptr, size),
            // SAFETY: the caller's promise, passed on.
            None => unsafe { self.small.dealloc(ptr, layout) },
        }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller's promise that the size is valid.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (large_size(layout), large_size(new)) {
            // SAFETY: the caller's promise, passed on.
            (None, None) => unsafe { self.small.realloc(ptr, layout, new_size) },
            (old, new) if old == new => ptr,
            _ => {
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
    }
}

#[expect(unsafe_code, reason = "FFI")]
fn map_pages(size: usize) -> *mut u8 {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping touches no other memory.
    let address = unsafe { libc::mmap(ptr::null_mut(), size, access, kind, -1, 0) };
    if address == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    address.cast()
}

/// Gives the pages of a whole block back to the kernel.
#[expect(unsafe_code, reason = "FFI")]
fn release_pages(address: *mut u8, size: usize) {
    // SAFETY: the block was mapped with this size, and nobody uses it.
    unsafe { libc::munmap(address.cast(), size) };
}
