//! Ctrl-C, SIGTERM and SIGHUP: the first finishes the step and saves, the second ends the process.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Context;

use super::exit::Exit;
use super::output::complain;

/// What signals set.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    stop: Arc<AtomicBool>,
    armed: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes over the signals of this process. Until `arm`, one ends the process: there is nothing to save yet.
    ///
    /// # Errors
    /// If the process already has a handler.
    pub fn install() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let hangup_ignored = is_ignored(libc::SIGHUP);
        let seen = interrupt.clone();
        ctrlc::set_handler(move || {
            if !seen.armed.load(Ordering::SeqCst) || seen.stop.swap(true, Ordering::SeqCst) {
                std::process::exit(Exit::Interrupted as i32);
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

    /// From here on the first signal only sets `stop`.
    pub fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Set once the run shall stop.
    #[must_use]
    pub fn stop(&self) -> &AtomicBool {
        &self.stop
    }
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
    fn the_kernels_mask_is_read() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(ignored_in(status, 1) && ignored_in(status, 13));
        assert!(!ignored_in(status, 2) && !ignored_in("", 1));
    }
}
