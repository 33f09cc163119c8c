//! Waiting for another rank: how long an operation may wait, and sleeping until the other rank has done something, which is a futex in the
//! region on Linux and short sleeps elsewhere.

use std::fmt::Display;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use super::error::{CommError, OperationKind};

/// An operation that waits longer for a rank fails: long enough for a checkpoint to a slow disk, and short enough that a hang does not cost
/// a night.
pub(crate) const OPERATION_TIMEOUT: Duration = Duration::from_mins(30);

/// The longest sleep of a thread that waits. It notices the end of the run after this time at the latest.
pub(crate) const MAX_SLEEP: Duration = Duration::from_millis(100);

/// The timeout of a rank's operations, in milliseconds; `OPERATION_TIMEOUT` at first.
#[derive(Debug)]
pub(crate) struct OperationTimeout(AtomicU64);

impl Default for OperationTimeout {
    fn default() -> Self {
        Self(AtomicU64::new(OPERATION_TIMEOUT.as_millis() as u64))
    }
}

impl OperationTimeout {
    pub(crate) fn set(&self, timeout: Duration) {
        self.0.store(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The time that is left to `rank`, which has waited for `peer` since `started`. `last_seen` is the peer's last known status.
    ///
    /// # Errors
    /// `CommError::Timeout` if no time is left.
    pub(crate) fn time_left(
        &self,
        operation: OperationKind,
        rank: usize,
        peer: usize,
        started: Instant,
        last_seen: &dyn Display,
    ) -> Result<Duration, CommError> {
        let waited = started.elapsed();
        let left = Duration::from_millis(self.0.load(Ordering::Relaxed)).saturating_sub(waited);
        if left.is_zero() {
            return Err(CommError::Timeout { operation, rank, peer, waited, last_seen: last_seen.to_string() });
        }
        Ok(left)
    }
}

/// Wakes ranks that sleep until a counter has grown.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct WakeSignal {
    word: AtomicU32,
    sleepers: AtomicU32,
}

impl WakeSignal {
    /// Sleeps until woken, for at most `timeout`, unless `ready` already. May return early.
    pub(crate) fn sleep(&self, timeout: Duration, ready: impl Fn() -> bool) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = self.word.load(Ordering::SeqCst);
        // Pairs with the fence in `wake_all`: either the waking rank sees a sleeper, or `ready` sees what was done.
        fence(Ordering::SeqCst);
        if !ready() {
            futex_wait(&self.word, seen, timeout);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes whoever sleeps.
    pub(crate) fn wake_all(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.word.fetch_add(1, Ordering::SeqCst);
            futex_wake(&self.word);
        }
    }
}

/// Shared between processes, so not FUTEX_PRIVATE. Whatever it returns, the caller looks again.
#[cfg(target_os = "linux")]
fn futex_wait(word: &AtomicU32, seen: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(timeout.subsec_nanos() as i32),
    };
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: the word and the timeout outlive the call, which only reads them.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const timeout);
    }
}

#[cfg(target_os = "linux")]
fn futex_wake(word: &AtomicU32) {
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: the word's address is a key here; nothing is read or written.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}

#[cfg(not(target_os = "linux"))]
fn futex_wait(word: &AtomicU32, seen: u32, timeout: Duration) {
    if word.load(Ordering::SeqCst) == seen {
        std::thread::sleep(timeout.min(Duration::from_micros(100)));
    }
}

#[cfg(not(target_os = "linux"))]
fn futex_wake(_word: &AtomicU32) {}
