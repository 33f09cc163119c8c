//! One rank of a region, and how it waits for others. Its own thread and the one that runs started operations share it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::region::Region;
use crate::error::{CommError, JoinError, OperationKind};
use crate::host_comm::HostTransport;
use crate::waiting::{MAX_SLEEP, OperationTimeout};

/// Rounds of a busy loop, then of yielding the core, before a thread sleeps. They are few: on a machine with a core per rank,
/// the ranks' background threads share those cores with the computation.
const SPIN_ROUNDS: u32 = 200;
const YIELD_ROUNDS: u32 = 20;
/// A rank that waits samples this often, and at most so many times, whether the other rank has a core to compute on.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(1);
const SAMPLES: u64 = 64;

/// One rank's place in a region.
pub struct LocalRank {
    pub(super) region: Arc<Region>,
    pub(super) rank: usize,
    /// For each channel, a lock for its use by this process.
    pub(super) channels: Vec<Mutex<()>>,
    pub(super) timeout: OperationTimeout,
    pub(super) is_closing: AtomicBool,
}

impl LocalRank {
    /// Takes the rank's status, which makes this the only writer of the rank's counters.
    pub(super) fn new(region: Arc<Region>, rank: usize) -> Result<Self, JoinError> {
        let world_size = region.world_size();
        let status = region
            .status(rank)
            .ok_or_else(|| JoinError::Failed(format!("there is no rank {rank} in a world of {world_size}")))?;
        if !status.claim() {
            return Err(JoinError::Failed(format!("rank {rank} is taken")));
        }
        let channels = region.topology.channels.iter().map(|_| Mutex::new(())).collect();
        let (timeout, is_closing) = (OperationTimeout::default(), AtomicBool::new(false));
        Ok(Self { region, rank, channels, timeout, is_closing })
    }

    /// Wakes the waiter of `queue` of the rank `peer`.
    pub(super) fn wake(&self, peer: usize, queue: usize) {
        self.region.status_of(peer).wake_signals[queue].wake_all();
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
            let thread = &self.region.status_of(peer).thread;
            let (mut has_swapped, mut sample) = (false, thread.sample_cpu_time());
            for round in 0_u64.. {
                if ready() {
                    return Ok(());
                }
                self.ensure_running(operation)?;
                let status = self.region.status_of(peer);
                // In this order: what the peer did before it left counts, an abort included.
                if status.has_left() && !ready() {
                    self.ensure_running(operation)?;
                    let last_seen = status.snapshot().to_string();
                    return Err(CommError::Left { operation, rank: self.rank, peer, last_seen });
                }
                if round < u64::from(YIELD_ROUNDS) {
                    std::thread::yield_now();
                    continue;
                }
                let left = self.timeout.time_left(operation, self.rank, peer, started, &status.snapshot())?;
                let samples = !has_swapped && round < u64::from(YIELD_ROUNDS) + SAMPLES;
                let own = self.status();
                has_swapped |= samples && own.is_idle() && own.thread.swap_cores_with(thread, &sample);
                let longest = if samples { SAMPLE_INTERVAL } else { MAX_SLEEP };
                let must_wake = || ready() || status.has_left() || self.ensure_running(operation).is_err();
                sample = thread.sample_cpu_time();
                own.wake_signals[queue].sleep(left.min(longest), must_wake);
            }
            Ok(())
        })
    }
}

impl Drop for LocalRank {
    fn drop(&mut self) {
        self.status().thread.vacate();
        self.status().release();
        self.region.wake_all_ranks();
    }
}
