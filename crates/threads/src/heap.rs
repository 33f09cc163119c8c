//! Counts the memory of large allocations, which hold tensors. The allocator [`LargeBlocks`](crate::large_blocks::LargeBlocks) reports
//! them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// True once an allocation was counted, so that the program does use this allocator.
static HAS_COUNTED: AtomicBool = AtomicBool::new(false);
/// Bytes in large allocations, now and at most since [`restart_peak`].
static CURRENT_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn count_allocation(size: usize) {
    let now = CURRENT_BYTES.fetch_add(size, Ordering::Relaxed) + size;
    PEAK_BYTES.fetch_max(now, Ordering::Relaxed);
    if !HAS_COUNTED.load(Ordering::Relaxed) {
        HAS_COUNTED.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn count_release(size: usize) {
    CURRENT_BYTES.fetch_sub(size, Ordering::Relaxed);
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
