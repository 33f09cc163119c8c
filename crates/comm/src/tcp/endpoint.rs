//! A rank's communicator over a mesh of TCP connections.
//!
//! A sender has at most as many messages under way as the channel has slots. The receiver reports each message that it takes, which
//! frees its slot.

use std::sync::Arc;

use candle_core::Tensor;

use super::frame::FrameTag;
use super::mesh::TcpMesh;
use crate::collective::{Collective, RunningCollective};
use crate::error::{CommError, ElementType, JoinError, OperationKind};
use crate::group::{FOREGROUND, QueuePosition, RankTopology};
use crate::host_comm::{ExpectedMessage, HostComm, HostTransport};
use crate::rank_status::RankStatus;
use runner_compute::kernels::bytes;
use runner_spec::topology::{Channel, Topology};

/// One rank's end of a mesh whose ranks agree on a plan.
pub type TcpComm = HostComm<MeshRank>;

/// One rank of a mesh.
pub struct MeshRank {
    pub(super) mesh: Arc<TcpMesh>,
}

impl HostComm<MeshRank> {
    /// The communicator of `mesh` for `topology`, once all its ranks have `plan`.
    ///
    /// # Errors
    /// Those of `TcpMesh::agree_on_plan`.
    pub fn new(mesh: Arc<TcpMesh>, plan: &str, topology: &Topology) -> Result<Self, JoinError> {
        mesh.agree_on_plan(plan, topology)?;
        let topology = RankTopology::new(topology, mesh.rank());
        Ok(Self::with_transport(MeshRank { mesh }, topology))
    }
}

impl HostTransport for MeshRank {
    fn status(&self) -> &RankStatus {
        self.mesh.status()
    }

    fn ensure_running(&self, operation: OperationKind) -> Result<(), CommError> {
        self.mesh.ensure_running(operation)
    }

    fn run(
        running: &RunningCollective<'_, Self>,
        _: &mut QueuePosition,
        work: Collective<'_>,
    ) -> Result<(), CommError> {
        match work {
            Collective::Sum(buffers) => running.sum(buffers),
            Collective::Broadcast(buffers) => running.broadcast(buffers),
            Collective::Gather { own, all } => running.gather(own).map(|gathered| *all = gathered),
        }
    }

    fn send(&self, _: usize, channel: Channel, data: &Tensor, element: ElementType) -> Result<(), CommError> {
        let Channel { to, lane, slots, .. } = channel;
        let bytes = bytes::read(data, <[u8]>::to_vec)?;
        self.mesh.wait_for(OperationKind::Send, FOREGROUND, to, |state| state.take_slot(to, lane, slots))?;
        // The frame is queued without waiting for space: the slots bound the queue.
        self.mesh.send_queues[to].push(FrameTag::Message { lane, element }, bytes);
        Ok(())
    }

    fn receive(&self, _: usize, expected: &ExpectedMessage<'_>) -> Result<Tensor, CommError> {
        let Channel { from, lane, .. } = expected.channel;
        let message = self.mesh.wait_for(OperationKind::Receive, FOREGROUND, from, |state| {
            let messages = state.messages.get_mut(&(from, lane))?;
            let (element, bytes) = messages.front()?;
            // An unexpected message stays in its channel.
            if let Err(error) = expected.check(*element, bytes.len()) {
                return Some(Err(error));
            }
            messages.pop_front().map(|(_, bytes)| Ok(bytes))
        })?;
        let bytes = message?;
        self.mesh.send_queues[from].push(FrameTag::SlotFreed { lane }, Vec::new());
        expected.tensor(&bytes)
    }

    fn aborted(&self) -> Option<usize> {
        self.mesh.abort_cause().map(|abort| abort.by)
    }

    /// The mesh stays open for the control messages beside the operations.
    fn close(&self) {
        self.mesh.close_operations();
    }
}
