//! Sleeping until another rank has done something: a futex in the region on Linux, short sleeps elsewhere.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

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
