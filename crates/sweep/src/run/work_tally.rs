//! How much of a sweep's work is done, and the time that the rest takes at the speed so far.

use std::time::{Duration, Instant};

/// The work of one call of a sweep, in virtual costs.
#[derive(Debug)]
pub(super) struct WorkTally {
    started: Instant,
    /// The cost of the steps that this call did.
    pub done: f64,
    /// The cost of the remaining steps, as far as it is known.
    pub left: f64,
}

impl WorkTally {
    pub(super) fn start() -> Self {
        Self { started: Instant::now(), done: 0.0, left: 0.0 }
    }

    /// The share of the work that is done, from 0 to 1, if segments that are still running have done `running`.
    pub(super) fn share(&self, running: f64) -> f64 {
        let cost = self.done + running;
        let all = (self.done + self.left).max(cost);
        if all > 0.0 { cost / all } else { 0.0 }
    }

    /// The predicted time until the end.
    pub(super) fn remaining(&self, running: f64) -> Option<Duration> {
        let cost = self.done + running;
        let seconds = self.started.elapsed().as_secs_f64() / cost * (self.left - running).max(0.0);
        Duration::try_from_secs_f64(seconds).ok().filter(|_| cost > 0.0)
    }
}
