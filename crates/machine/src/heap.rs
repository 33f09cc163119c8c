//! Counts the memory of large allocations, which hold tensors, whatever allocator the program uses.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Smaller allocations are not counted: there are very many of them, and together they are small.
const LARGE_BYTES: usize = 1 << 14;

/// True once an allocation was counted, so that the program does use a [`CountingAllocator`].
static HAS_COUNTED: AtomicBool = AtomicBool::new(false);
/// Bytes in large allocations, now and at most since [`restart_peak`].
static CURRENT_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

/// An allocator whose large allocations are counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct CountingAllocator<A>(pub A);

fn count_allocation(size: usize) {
    if size >= LARGE_BYTES {
        let now = CURRENT_BYTES.fetch_add(size, Ordering::Relaxed) + size;
        PEAK_BYTES.fetch_max(now, Ordering::Relaxed);
        if !HAS_COUNTED.load(Ordering::Relaxed) {
            HAS_COUNTED.store(true, Ordering::Relaxed);
        }
    }
}

/// Counts the allocation of `size` bytes at `address`, unless it failed.
fn count_if_allocated(address: *mut u8, size: usize) -> *mut u8 {
    if !address.is_null() {
        count_allocation(size);
    }
    address
}

fn count_release(size: usize) {
    if size >= LARGE_BYTES {
        CURRENT_BYTES.fetch_sub(size, Ordering::Relaxed);
    }
}

#[expect(unsafe_code, reason = "an allocator")]
// SAFETY: every call goes to the inner allocator as it came; counting neither allocates nor panics.
unsafe impl<A: GlobalAlloc> GlobalAlloc for CountingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise, passed on.
        count_if_allocated(unsafe { self.0.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise, passed on.
        count_if_allocated(unsafe { self.0.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count_release(layout.size());
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller's promise, passed on.
        let out = unsafe { self.0.realloc(ptr, layout, new_size) };
        if !out.is_null() {
            count_release(layout.size());
            count_allocation(new_size);
        }
        out
    }
}

/// Bytes in large allocations now; the count of the peak starts again from here. `None` where the program does not count.
pub fn restart_peak() -> Option<u64> {
    let now = CURRENT_BYTES.load(Ordering::Relaxed);
    PEAK_BYTES.store(now, Ordering::Relaxed);
    HAS_COUNTED.load(Ordering::Relaxed).then_some(now as u64)
}

/// The most bytes that were in large allocations at once since `restart_peak`.
pub fn peak_bytes() -> Option<u64> {
    HAS_COUNTED.load(Ordering::Relaxed).then(|| PEAK_BYTES.load(Ordering::Relaxed) as u64)
}

#[cfg(test)]
mod tests {
    use std::alloc::System;

    use super::*;

    #[test]
    fn large_allocations_are_counted_and_uncounted() {
        let allocator = CountingAllocator(System);
        let (small, large) = (Layout::from_size_align(100, 8).unwrap(), Layout::from_size_align(1 << 20, 8).unwrap());
        let before = restart_peak().unwrap_or(0);
        #[expect(unsafe_code, reason = "an allocator's own test")]
        // SAFETY: layouts are not of size zero, and each pointer is given back with the layout that it has then.
        unsafe {
            let (a, b) = (allocator.alloc(small), allocator.alloc_zeroed(large));
            let b = allocator.realloc(b, large, 3 << 20);
            assert_eq!(restart_peak().unwrap() - before, 3 << 20);
            allocator.dealloc(a, small);
            allocator.dealloc(b, Layout::from_size_align(3 << 20, 8).unwrap());
        }
        assert_eq!((peak_bytes().unwrap() - before, restart_peak().unwrap() - before), (3 << 20, 0));
    }
}
