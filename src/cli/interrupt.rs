//! Ctrl-C, SIGTERM and SIGHUP: the first finishes the step and saves, the second ends the process.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::exit::Exit;
use super::output::complain;

/// Of a process that ends with another one (see `sweep::child`): signals this soon after the first are the same one. When a
/// process with several threads dies, the kernel tells its children so once for each.
const ONE: Duration = Duration::from_millis(500);

/// Launchers look for what became of their processes every few seconds, and pass signals on then.
const TWICE: Duration = Duration::from_secs(5);

/// What signals set.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt {
    stop: Arc<AtomicBool>,
    armed: Arc<AtomicBool>,
    /// How soon after the first signal another one counts.
    pause: Duration,
    first: Arc<Mutex<Option<Instant>>>,
}

impl Interrupt {
    /// Takes over the signals of this process. Until `arm`, one ends the process: there is nothing to save yet.
    ///
    /// # Errors
    /// If the process already has a handler.
    pub(crate) fn install() -> anyhow::Result<Self> {
        Self::install_pausing(Duration::ZERO)
    }

    /// As `install`, for a process that gets a signal when the one that started it ends.
    ///
    /// # Errors
    /// As `install`.
    pub(crate) fn install_as_child() -> anyhow::Result<Self> {
        Self::install_pausing(ONE)
    }

    /// As `install`, for one of several processes, of which one `speaks`, that a launcher tells of a signal that a terminal has told them already.
    ///
    /// # Errors
    /// As `install`.
    pub(crate) fn install_as_rank(speaks: bool) -> anyhow::Result<Self> {
        Self::install_with(TWICE, speaks)
    }

    fn install_pausing(pause: Duration) -> anyhow::Result<Self> {
        Self::install_with(pause, true)
    }

    fn install_with(pause: Duration, speaks: bool) -> anyhow::Result<Self> {
        let interrupt = Self { pause, ..Self::default() };
        let hangup_ignored = is_ignored(libc::SIGHUP);
        let seen = interrupt.clone();
        ctrlc::set_handler(move || {
            match seen.heard(Instant::now()) {
                Heard::First if speaks => {}
                Heard::First | Heard::Same => return,
                Heard::Last => std::process::exit(Exit::Interrupted as i32),
            }
            // On a thread of its own: a terminal that stands still must not keep the second signal from being heard.
            let say = || complain("\nfinishing the step, then saving; once more ends it at once");
            let _ = thread::Builder::new().name("interrupt".to_owned()).spawn(say);
        })
        .context("signal handler")?;
        if hangup_ignored {
            ignore_hangup();
        }
        Ok(interrupt)
    }

    fn heard(&self, now: Instant) -> Heard {
        if !self.armed.load(Ordering::SeqCst) {
            return Heard::Last;
        }
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        self.stop.store(true, Ordering::SeqCst);
        match *first {
            None => {
                *first = Some(now);
                Heard::First
            }
            Some(first) if now.duration_since(first) < self.pause => Heard::Same,
            Some(_) => Heard::Last,
        }
    }

    /// From here on the first signal only sets `stop`.
    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Set once the run shall stop.
    #[must_use]
    pub(crate) fn stop(&self) -> &AtomicBool {
        &self.stop
    }
}

/// What a signal means.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    /// Stop soon.
    First,
    /// The first one again.
    Same,
    /// Stop at once.
    Last,
}

/// Whether this process was started with `signal` ignored, as by nohup. Where the kernel does not say: no.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_in(&status, signal)
}

fn ignored_in(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).is_some_and(|m| m >> (signal - 1) & 1 == 1)
}

/// The handler is for all three signals at once; under nohup a hangup must stay ignored.
fn ignore_hangup() {
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: SIG_IGN runs no code of ours.
    unsafe {
        libc::signal(libc::SIGHUP, libc::SIG_IGN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_signal_counts_and_an_echo_does_not() {
        let now = Instant::now();
        let after = |ms| now + Duration::from_millis(ms);
        let one = Interrupt::default();
        assert_eq!(one.heard(now), Heard::Last, "nothing to save yet");
        one.arm();
        assert_eq!([one.heard(now), one.heard(now)], [Heard::First, Heard::Last]);
        let child = Interrupt { pause: ONE, ..Interrupt::default() };
        child.arm();
        let heard = [now, after(1), after(499), after(500)].map(|at| child.heard(at));
        assert_eq!(heard, [Heard::First, Heard::Same, Heard::Same, Heard::Last]);
        assert!(child.stop().load(Ordering::SeqCst));
    }

    #[test]
    fn the_kernels_mask_is_read() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(ignored_in(status, 1) && ignored_in(status, 13));
        assert!(!ignored_in(status, 2) && !ignored_in("", 1));
    }
}
