//! A request to stop a run, which a signal handler or another thread makes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A request to stop. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct StopSwitch {
    requested: Arc<AtomicBool>,
    armed: Arc<AtomicBool>,
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
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Declares that everything is saved, so that ending at once loses nothing.
    pub fn disarm(&self) {
        self.armed.store(false, Ordering::SeqCst);
    }

    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.requested
    }
}
