//! A rank's place in the region, shared by its own thread and the one that runs started operations; and waiting.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::layout::MemberCounters;
use super::region::{Region, RegionError};
use crate::error::{CommError, OperationKind};
use crate::group::{QueuePosition, RankTopology};
use crate::host_comm::HostTransport;
use crate::timeout::{MAX_SLEEP, OperationTimeout};

/// Rounds of a busy loop, then of yielding the core, before a thread sleeps. They are few: on a machine with a core per rank,
/// the ranks' background threads share those cores with the computation.
const SPIN_ROUNDS: u32 = 200;
const YIELD_ROUNDS: u32 = 20;

/// One rank's place in a region.
pub struct LocalRank {
    pub(super) region: Arc<Region>,
    pub(super) rank: usize,
    pub(super) place: RankTopology,
    /// For each channel, a lock for its use by this process.
    pub(super) channels: Vec<Mutex<()>>,
    pub(super) timeout: OperationTimeout,
    pub(super) closing: AtomicBool,
}

impl LocalRank {
    /// Takes the rank's status, which makes this the only writer of the rank's counters.
    pub(super) fn new(region: Arc<Region>, rank: usize) -> Result<Self, RegionError> {
        let world_size = region.world_size();
        let status = region
            .status(rank)
            .ok_or_else(|| RegionError::Failed(format!("there is no rank {rank} in a world of {world_size}")))?;
        if !status.claim() {
            return Err(RegionError::Failed(format!("rank {rank} is taken")));
        }
        let place = RankTopology::new(&region.topology, rank, |group, queue, own_index| {
            // The place where an earlier owner of the rank ended.
            let counters: &MemberCounters = region.object_at(region.layout.counters(group, queue, own_index));
            let [operations, next_piece] = [&counters.operations, &counters.staged].map(|c| c.load(Ordering::Acquire));
            QueuePosition { operations, next_piece, is_broken: false }
        });
        let channels = region.topology.channels.iter().map(|_| Mutex::new(())).collect();
        let (timeout, closing) = (OperationTimeout::default(), AtomicBool::new(false));
        Ok(Self { region, rank, place, channels, timeout, closing })
    }

    /// Waits until `ready` returns true, which `peer` brings about before it wakes this rank's waiter of `queue`.
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
        self.status().wait_for_rank(queue, peer, || {
            let started = Instant::now();
            for round in 0_u64.. {
                if ready() {
                    return Ok(());
                }
                self.ensure_running(operation)?;
                let status = self.region.status_of(peer);
                // In this order: what the peer did before it left counts, an abort included.
                if status.has_left() && !ready() {
                    self.ensure_running(operation)?;
                    let doing = status.snapshot().to_string();
                    return Err(CommError::Left { operation, rank: self.rank, peer, doing });
                }
                if round < u64::from(YIELD_ROUNDS) {
                    std::thread::yield_now();
                    continue;
                }
                let left = self.timeout.time_left(operation, self.rank, peer, started, &status.snapshot())?;
                let must_wake = || ready() || status.has_left() || self.ensure_running(operation).is_err();
                self.status().wake_signals[queue].sleep(left.min(MAX_SLEEP), must_wake);
            }
            Ok(())
        })
    }
}

impl Drop for LocalRank {
    fn drop(&mut self) {
        self.status().release();
        self.region.wake_all_ranks();
    }
}

/// True if a counter that only grows, and may wrap, has reached `target`.
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
