//! A request to stop a run, which a signal handler or another thread makes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A request to stop. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct StopSwitch {
    requested: Arc<AtomicBool>,
    armed: Arc<AtomicBool>,
    waiting: Arc<AtomicBool>,
}

impl StopSwitch {
    /// Asks the run to finish its step, save and end.
    pub fn request(&self) {
        self.requested.store(true, Ordering::SeqCst);
    }

    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }

    /// True while there is something to save, so that ending at once would lose it.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst)
    }

    /// Declares that from now on there is something to save.
    pub fn arm(&self) {
        self.clear_wait();
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Declares that everything is saved, so that ending at once loses nothing.
    pub fn disarm(&self) {
        self.clear_wait();
        self.armed.store(false, Ordering::SeqCst);
    }

    /// Declares that the session has recorded its end, and only waits for a server.
    pub(crate) fn begin_wait(&self) {
        self.waiting.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Asks a session that only waits for a server to end its wait. Returns false if no session waits.
    pub fn request_wait_end(&self) -> bool {
        self.waiting.swap(false, Ordering::SeqCst)
    }

    /// Declares that no session waits for a server.
    pub(crate) fn clear_wait(&self) {
        self.waiting.store(false, Ordering::SeqCst);
    }

    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.requested
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_ended_once_and_not_after_it() {
        let stop = StopSwitch::default();
        assert!(!stop.request_wait_end());
        stop.begin_wait();
        assert!(stop.is_waiting() && stop.request_wait_end() && !stop.is_waiting() && !stop.request_wait_end());
        for end in [StopSwitch::arm, StopSwitch::disarm] {
            stop.begin_wait();
            end(&stop);
            assert!(!stop.request_wait_end(), "a signal has its usual meaning again");
        }
        assert!(!stop.is_requested());
    }
}
