//! One rank of a region: its communicator, which its own thread and the one that runs started operations share; and waiting.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use candle_core::Tensor;

use super::channel;
use super::region::Region;
use crate::channel::ExpectedMessage;
use crate::collective::{Collective, RunningCollective};
use crate::error::{CommError, ElementType, JoinError, OperationKind};
use crate::group::{QueuePosition, RankTopology};
use crate::host_comm::{HostComm, HostTransport};
use crate::rank_status::RankStatus;
use crate::timeout::{MAX_SLEEP, OperationTimeout};
use crate::wake_signal::WakeSignal;
use runner_spec::topology::Channel;

/// Rounds of a busy loop, then of yielding the core, before a thread sleeps. They are few: on a machine with a core per rank,
/// the ranks' background threads share those cores with the computation.
const SPIN_ROUNDS: u32 = 200;
const YIELD_ROUNDS: u32 = 20;

/// One rank's end of a region. A rank can be taken once.
pub type LocalComm = HostComm<LocalRank>;

impl HostComm<LocalRank> {
    /// # Errors
    /// If there is no such rank, or it is taken.
    pub fn new(region: Arc<Region>, rank: usize) -> Result<Self, JoinError> {
        let topology = RankTopology::new(&region.topology, rank);
        Ok(Self::with_transport(LocalRank::new(region, rank)?, topology))
    }

    /// Sets how long an operation may wait for a rank before it fails with `Timeout`; 30 minutes at first.
    pub fn set_operation_timeout(&self, timeout: Duration) {
        self.own.transport.timeout.set(timeout);
    }
}

impl HostTransport for LocalRank {
    fn status(&self) -> &RankStatus {
        self.region.status_of(self.rank)
    }

    fn ensure_running(&self, operation: OperationKind) -> Result<(), CommError> {
        if let Some(by) = self.region.aborted() {
            return Err(CommError::Aborted { by });
        }
        if self.is_closing.load(Ordering::Relaxed) {
            return Err(CommError::Closed { operation });
        }
        Ok(())
    }

    fn run(
        running: &RunningCollective<'_, Self>,
        position: &mut QueuePosition,
        mut work: Collective<'_>,
    ) -> Result<(), CommError> {
        let pieces = running.run_pieces(position.next_piece, &mut work)?;
        position.next_piece += pieces as u64;
        Ok(())
    }

    fn send(&self, index: usize, channel: Channel, data: &Tensor, element: ElementType) -> Result<(), CommError> {
        channel::send(self, index, channel, data, element)
    }

    fn receive(&self, index: usize, expected: &ExpectedMessage<'_>) -> Result<Tensor, CommError> {
        channel::receive(self, index, expected)
    }

    fn aborted(&self) -> Option<usize> {
        self.region.aborted()
    }

    fn close(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
        self.status().wake_signals.iter().for_each(WakeSignal::wake_all);
    }
}

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
                    let last_seen = status.snapshot().to_string();
                    return Err(CommError::Left { operation, rank: self.rank, peer, last_seen });
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
