//! A rank's communicator over a region.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use candle_core::Tensor;

use super::channel;
use super::local_rank::LocalRank;
use super::region::Region;
use crate::collective::{Collective, RunningCollective};
use crate::error::{CommError, ElementType, JoinError, OperationKind};
use crate::group::{QueuePosition, RankTopology};
use crate::host_comm::{ExpectedMessage, HostComm, HostTransport};
use crate::rank_status::RankStatus;
use crate::waiting::WakeSignal;
use runner_spec::topology::Channel;

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
