//! The jobs of Slurm that train points while a sweep decides which of them continue.
//!
//! A job outlives the process that submitted it, and is found again by its script in Slurm's queue. It has ended once it is no longer there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::slurm::PointSubmitter;
use runner_spec::error::Result;

/// The queue is read soon after a job was submitted, and then less and less often.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(250);
const INTERVAL_GROWTH: f64 = 1.3;
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(15);

/// The jobs of a sweep's points.
#[derive(Debug)]
pub(super) struct PointJobs<'a> {
    submitter: PointSubmitter<'a>,
    /// The points with a job, as the queue was last read; true for those whose job waits.
    queued: BTreeMap<usize, bool>,
    next_poll: Instant,
    poll_interval: Duration,
}

impl<'a> PointJobs<'a> {
    pub(super) fn new(submitter: PointSubmitter<'a>) -> Self {
        Self { submitter, queued: BTreeMap::new(), next_poll: Instant::now(), poll_interval: MIN_POLL_INTERVAL }
    }

    /// Submits `point` unless it has a job of an earlier call, perhaps for fewer steps. Returns true if it was submitted.
    ///
    /// # Errors
    /// If Slurm does not show its queue, or refuses.
    pub(super) fn submit(&mut self, point: usize, until: Option<u64>) -> Result<bool> {
        self.poll_interval = MIN_POLL_INTERVAL;
        self.read_queue()?;
        if self.queued.contains_key(&point) {
            return Ok(false);
        }
        self.submitter.submit(&[point], until)?;
        self.queued.insert(point, true);
        Ok(true)
    }

    /// Reads the queue if that is due.
    ///
    /// # Errors
    /// If Slurm does not show it. Until it does, the jobs count as when it was last read.
    pub(super) fn poll(&mut self) -> Result<()> {
        if Instant::now() < self.next_poll {
            return Ok(());
        }
        self.poll_interval = MAX_POLL_INTERVAL.min(self.poll_interval.mul_f64(INTERVAL_GROWTH));
        self.read_queue()
    }

    fn read_queue(&mut self) -> Result<()> {
        let queued = self.submitter.queued_points();
        self.next_poll = Instant::now() + self.poll_interval;
        queued.map(|queued| self.queued = queued)
    }

    /// Whether the job of `point` waits; `None` if it has no job.
    pub(super) fn waits(&self, point: usize) -> Option<bool> {
        self.queued.get(&point).copied()
    }
}
