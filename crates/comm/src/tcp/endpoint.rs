//! A rank's communicator over a mesh of TCP connections.

use std::sync::Arc;

use candle_core::Tensor;

use super::mesh::TcpMesh;
use super::rendezvous::JoinError;
use super::{channel, collective};
use crate::channel::ExpectedMessage;
use crate::collective::{Collective, RunningCollective};
use crate::error::{CommError, ElementType, OperationKind};
use crate::group::{QueuePosition, RankTopology};
use crate::host_comm::{HostComm, HostTransport};
use crate::local::RankStatus;
use runner_spec::topology::Topology;

/// One rank's end of a mesh whose ranks agree on a plan.
pub type TcpComm = HostComm<MeshRank>;

/// One rank's place in a mesh.
pub struct MeshRank {
    pub(super) mesh: Arc<TcpMesh>,
    place: RankTopology,
}

impl HostComm<MeshRank> {
    /// The communicator of `mesh` for `topology`, once all its ranks have `plan`.
    ///
    /// # Errors
    /// Those of `TcpMesh::agree_on_plan`.
    pub fn new(mesh: Arc<TcpMesh>, plan: &str, topology: &Topology) -> Result<Self, JoinError> {
        mesh.agree_on_plan(plan, topology)?;
        let place = RankTopology::new(topology, mesh.rank(), |_, _, _| QueuePosition::default());
        Ok(Self::with_transport(MeshRank { mesh, place }))
    }

    pub fn mesh(&self) -> &Arc<TcpMesh> {
        &self.transport.mesh
    }
}

impl HostTransport for MeshRank {
    fn place(&self) -> &RankTopology {
        &self.place
    }

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
        collective::run(running, work)
    }

    fn send(&self, channel: usize, data: &Tensor, element: ElementType) -> Result<(), CommError> {
        channel::send(&self.mesh, self.place.topology.channels[channel], data, element)
    }

    fn receive(&self, _: usize, expected: &ExpectedMessage<'_>) -> Result<Tensor, CommError> {
        channel::receive(&self.mesh, expected)
    }

    fn aborted(&self) -> Option<usize> {
        self.mesh.abort_cause().map(|abort| abort.by)
    }

    /// The mesh goes on for the control messages beside the operations.
    fn close(&self) {
        self.mesh.close_operations();
    }
}
