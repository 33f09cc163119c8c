//! A rank's communicator over a region of shared memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use candle_core::{DType, Tensor};

use super::collective::PieceSteps;
use super::local_rank::LocalRank;
use super::piece_steps::{Barrier, Broadcast, Gather, Sum};
use super::rank_status::RankStatus;
use super::region::{Region, RegionError};
use super::wake_signal::WakeSignal;
use super::{channel, collective};
use crate::collective::{Collective, Request};
use crate::error::{CommError, OperationKind};
use crate::group::Membership;
use crate::host_comm::{HostComm, HostTransport};
use runner_spec::topology::{GroupId, Lane};

/// One rank's end of a region. When it is dropped, the rank may be taken again.
pub type LocalComm = HostComm<LocalRank>;

impl HostComm<LocalRank> {
    /// # Errors
    /// If there is no such rank, or it is taken.
    pub fn new(region: Arc<Region>, rank: usize) -> Result<Self, RegionError> {
        Ok(Self::over(LocalRank::new(region, rank)?))
    }

    /// How long an operation may wait for a rank before it fails with `Timeout`; 30 minutes at first.
    pub fn set_operation_timeout(&self, timeout: Duration) {
        self.transport.set_operation_timeout(timeout);
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
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.region.world_size()
    }

    fn status(&self) -> &RankStatus {
        self.region.status_of(self.rank)
    }

    fn membership(&self, group: GroupId) -> Result<&Membership, CommError> {
        self.memberships.get(group)
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
        &self,
        membership: &Membership,
        queue: usize,
        request: Request,
        work: Collective<'_>,
    ) -> Result<(), CommError> {
        let steps: &mut dyn PieceSteps = match work {
            Collective::Sum(buffers) => &mut Sum { buffers },
            Collective::Broadcast(buffers) => &mut Broadcast { buffers },
            Collective::Gather { own, all } => &mut Gather::new(own, all),
            Collective::Barrier => &mut Barrier,
        };
        collective::run(self, membership, queue, request, steps)
    }

    fn send(&self, to: usize, lane: Lane, data: &Tensor) -> Result<(), CommError> {
        channel::send(self, to, lane, data)
    }

    fn receive(&self, from: usize, lane: Lane, dtype: DType, shape: &[usize]) -> Result<Tensor, CommError> {
        channel::receive(self, from, lane, dtype, shape)
    }

    fn aborted(&self) -> Option<usize> {
        self.region.aborted()
    }

    fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.status().wake_signals.iter().for_each(WakeSignal::wake_all);
    }
}
