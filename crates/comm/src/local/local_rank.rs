//! A rank's place in the region, shared by its own thread and the one that runs started operations; and waiting.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::layout::MemberCounters;
use super::region::{Region, RegionError};
use crate::error::{CommError, OperationKind};
use crate::group::{Memberships, QueuePosition};
use crate::host_comm::HostTransport;
use crate::lock::lock_or_recover;
use runner_spec::topology::{Channel, Lane};

/// Half an hour: a checkpoint to a slow disk is shorter, a night is longer.
const OPERATION_TIMEOUT: Duration = Duration::from_mins(30);

/// Turns of a busy loop, then of giving the core away, before sleeping. Few: on a machine with a core per rank, the
/// ranks' background threads share those cores with the computation.
const SPIN_ROUNDS: u32 = 200;
const YIELD_ROUNDS: u32 = 20;

/// Longest sleep: an end of the run is noticed at latest after it.
const MAX_SLEEP: Duration = Duration::from_millis(100);

pub struct LocalRank {
    pub(super) region: Arc<Region>,
    pub(super) rank: usize,
    pub(super) memberships: Memberships,
    /// For each channel, a lock for its use by this process.
    channels: Vec<Mutex<()>>,
    timeout: AtomicU64,
    pub(super) closing: AtomicBool,
}

impl fmt::Debug for LocalRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalRank").field("rank", &self.rank).field("region", &self.region).finish_non_exhaustive()
    }
}

impl LocalRank {
    /// Takes the rank's status: whoever has it is the one writer of the rank's counters.
    pub(super) fn new(region: Arc<Region>, rank: usize) -> Result<Self, RegionError> {
        let world_size = region.world_size();
        let status = region.status(rank).ok_or(RegionError::NoSuchRank { rank, world_size })?;
        if !status.claim() {
            return Err(RegionError::Taken { rank });
        }
        let memberships = Memberships::new(&region.topology, rank, |group, queue, own_index| {
            // The place where an earlier owner of the rank ended.
            let counters: &MemberCounters = region.at(region.layout.counters(group, queue, own_index));
            QueuePosition::at(counters.operations.load(Ordering::Acquire), counters.staged.load(Ordering::Acquire))
        });
        let channels = region.topology.channels.iter().map(|_| Mutex::new(())).collect();
        let timeout = AtomicU64::new(OPERATION_TIMEOUT.as_millis() as u64);
        Ok(Self { memberships, channels, timeout, closing: AtomicBool::new(false), rank, region })
    }

    /// The index of a channel, and its use by this thread alone.
    pub(super) fn channel(&self, from: usize, to: usize, lane: Lane) -> Result<(usize, MutexGuard<'_, ()>), CommError> {
        let is_wanted = |c: &Channel| (c.from, c.to, c.lane) == (from, to, lane);
        let index = self.region.topology.channels.iter().position(is_wanted);
        let index = index.ok_or(CommError::NoChannel { from, to, lane })?;
        Ok((index, lock_or_recover(&self.channels[index])))
    }

    pub(super) fn set_operation_timeout(&self, timeout: Duration) {
        self.timeout.store(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns once `ready`, which `peer` makes true and then wakes this rank's waiter of `queue`.
    pub(super) fn wait_for(
        &self,
        operation: OperationKind,
        queue: usize,
        peer: usize,
        ready: impl Fn() -> bool,
    ) -> Result<(), CommError> {
        for _ in 0..SPIN_ROUNDS {
            if ready() {
                self.status().record_progress();
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.status().set_waiting(queue, Some(peer));
        let result = self.wait_long(operation, queue, peer, ready);
        // Before it waits no more: the time until then was not its own.
        self.status().record_progress();
        self.status().set_waiting(queue, None);
        result
    }

    fn wait_long(
        &self,
        operation: OperationKind,
        queue: usize,
        peer: usize,
        ready: impl Fn() -> bool,
    ) -> Result<(), CommError> {
        let started = Instant::now();
        let timeout = Duration::from_millis(self.timeout.load(Ordering::Relaxed));
        for turn in 0_u64.. {
            if ready() {
                return Ok(());
            }
            self.ensure_running(operation)?;
            let place = self.region.status_of(peer);
            // In this order: what it did before it left counts, an abort included.
            if place.has_left() && !ready() {
                self.ensure_running(operation)?;
                let doing = place.snapshot().to_string();
                return Err(CommError::Left { operation, rank: self.rank, peer, doing });
            }
            if turn < u64::from(YIELD_ROUNDS) {
                std::thread::yield_now();
                continue;
            }
            let waited = started.elapsed();
            let Some(left) = timeout.checked_sub(waited).filter(|left| !left.is_zero()) else {
                let doing = place.snapshot().to_string();
                return Err(CommError::Timeout { operation, rank: self.rank, peer, waited, doing });
            };
            let over = || ready() || place.has_left() || self.ensure_running(operation).is_err();
            self.status().wake_signals[queue].sleep(left.min(MAX_SLEEP), over);
        }
        Ok(())
    }
}

impl Drop for LocalRank {
    fn drop(&mut self) {
        self.status().release();
        self.region.wake_all_ranks();
    }
}

/// Whether a counter that only grows, and may wrap, has come to `target`.
pub(super) fn reached(counter: u64, target: u64) -> bool {
    counter.wrapping_sub(target).cast_signed() >= 0
}

#[cfg(test)]
mod tests {
    use super::reached;

    #[test]
    fn counters_may_wrap() {
        assert!(reached(5, 5) && reached(6, 5) && !reached(4, 5));
        assert!(reached(1, u64::MAX) && !reached(u64::MAX, 1));
        assert!(reached(0, 0_u64.wrapping_sub(1)), "before the first piece nothing is to be waited for");
    }
}
