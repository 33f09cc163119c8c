//! How fast bytes go from one thread's buffer through memory to another's.

use std::io;
use std::sync::Barrier;
use std::time::Instant;

use runner_threads::threads;

/// Bytes of a buffer: beyond the caches of most machines.
const BYTES: usize = 32 << 20;

/// Bytes/s that each of two threads copies between two buffers at the same time. The fastest of `times` copies counts, because other
/// processes slow some copies down.
///
/// # Errors
/// If the system refuses the threads.
pub(super) fn bytes_per_second(times: usize) -> io::Result<f64> {
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
    let rates = threads::run_together("copy", vec![&one; 2])?;
    // A thread that panicked has no rate.
    Ok(rates.into_iter().flatten().fold(f64::INFINITY, f64::min))
}
