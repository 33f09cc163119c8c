//! A rank's communicator over a region of shared memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use candle_core::Tensor;

use super::channel;
use super::local_rank::LocalRank;
use super::rank_status::RankStatus;
use super::region::{Region, RegionError};
use super::wake_signal::WakeSignal;
use crate::channel::ExpectedMessage;
use crate::collective::{Collective, RunningCollective};
use crate::error::{CommError, ElementType, OperationKind};
use crate::group::{QueuePosition, RankTopology};
use crate::host_comm::{HostComm, HostTransport};

/// One rank's end of a region. When it is dropped, the rank may be taken again.
pub type LocalComm = HostComm<LocalRank>;

impl HostComm<LocalRank> {
    /// # Errors
    /// If there is no such rank, or it is taken.
    pub fn new(region: Arc<Region>, rank: usize) -> Result<Self, RegionError> {
        Ok(Self::with_transport(LocalRank::new(region, rank)?))
    }

    /// Sets how long an operation may wait for a rank before it fails with `Timeout`; 30 minutes at first.
    pub fn set_operation_timeout(&self, timeout: Duration) {
        self.transport.timeout.set(timeout);
    }

    pub fn region(&self) -> &Arc<Region> {
        &self.transport.region
    }

    /// This rank's status, which the other ranks see.
    pub fn status(&self) -> &RankStatus {
        self.transport.status()
    }
}

impl HostTransport for LocalRank {
    fn place(&self) -> &RankTopology {
        &self.place
    }

    fn status(&self) -> &RankStatus {
        self.region.status_of(self.rank)
    }

    fn ensure_running(&self, operation: OperationKind) -> Result<(), CommError> {
        if let Some(by) = self.region.aborted() {
            return Err(CommError::Aborted { by });
        }
        if self.closing.load(Ordering::Relaxed) {
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
        position.next_piece = position.next_piece.wrapping_add(pieces as u64);
        running.counters(running.own_index()).operations.store(position.operations, Ordering::Release);
        Ok(())
    }

    fn send(&self, channel: usize, data: &Tensor, element: ElementType) -> Result<(), CommError> {
        channel::send(self, channel, data, element)
    }

    fn receive(&self, channel: usize, expected: &ExpectedMessage<'_>) -> Result<Tensor, CommError> {
        channel::receive(self, channel, expected)
    }

    fn aborted(&self) -> Option<usize> {
        self.region.aborted()
    }

    fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.status().wake_signals.iter().for_each(WakeSignal::wake_all);
    }
}
