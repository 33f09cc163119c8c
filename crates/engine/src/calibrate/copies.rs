//! How fast bytes go from one thread's buffer through memory to another's.

use std::sync::Barrier;
use std::time::Instant;

/// Bytes of a buffer: beyond the caches of most machines.
const BYTES: usize = 32 << 20;

/// Bytes/s that each of two threads copies between two buffers at the same time. The fastest of `times` copies counts, because other
/// processes slow some copies down.
pub(super) fn bytes_per_second(times: usize) -> f64 {
    let barrier = Barrier::new(2);
    let one = || {
        let from = vec![1_u8; BYTES];
        let mut to = vec![0_u8; BYTES];
        let mut best = f64::INFINITY;
        for _ in 0..times.max(1) {
            barrier.wait();
            let started = Instant::now();
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&to);
            best = best.min(started.elapsed().as_secs_f64());
        }
        BYTES as f64 / best.max(1e-9)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(one);
        let mine = one();
        other.join().map_or(mine, |other| mine.min(other))
    })
}
