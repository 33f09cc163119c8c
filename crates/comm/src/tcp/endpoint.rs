//! A rank's communicator over a mesh of TCP connections.

use std::sync::Arc;

use candle_core::{DType, Tensor};

use super::mesh::Mesh;
use super::rendezvous::JoinError;
use super::{channel, collective};
use crate::collective::{Collective, Request};
use crate::error::{CommError, OperationKind};
use crate::group::{Membership, Memberships, QueuePosition};
use crate::host_comm::{HostComm, HostTransport};
use crate::local::RankStatus;
use runner_spec::topology::{GroupId, Lane, Topology};

/// One rank's end of a mesh whose ranks agree on a plan.
pub type TcpComm = HostComm<MeshRank>;

pub struct MeshRank {
    mesh: Arc<Mesh>,
    memberships: Memberships,
}

impl HostComm<MeshRank> {
    /// The communicator of `mesh` for `topology`, once all its ranks have `plan`.
    ///
    /// # Errors
    /// Those of `Mesh::agree_on_plan`.
    pub fn new(mesh: Arc<Mesh>, plan: &str, topology: &Topology) -> Result<Self, JoinError> {
        mesh.agree_on_plan(plan, topology)?;
        let memberships = Memberships::new(topology, mesh.rank(), |_, _, _| QueuePosition::default());
        Ok(Self::over(MeshRank { mesh, memberships }))
    }

    pub fn mesh(&self) -> &Arc<Mesh> {
        &self.transport.mesh
    }
}

impl HostTransport for MeshRank {
    fn rank(&self) -> usize {
        self.mesh.rank()
    }

    fn world_size(&self) -> usize {
        self.mesh.world_size()
    }

    fn status(&self) -> &RankStatus {
        self.mesh.status()
    }

    fn membership(&self, group: GroupId) -> Result<&Membership, CommError> {
        self.memberships.get(group)
    }

    fn ensure_running(&self, operation: OperationKind) -> Result<(), CommError> {
        self.mesh.shared.ensure_running(operation)
    }

    fn run(
        &self,
        membership: &Membership,
        queue: usize,
        request: Request,
        work: Collective<'_>,
    ) -> Result<(), CommError> {
        collective::run(&self.mesh.shared, membership, queue, request, work)
    }

    fn send(&self, to: usize, lane: Lane, data: &Tensor) -> Result<(), CommError> {
        channel::send(&self.mesh.shared, to, lane, data)
    }

    fn receive(&self, from: usize, lane: Lane, dtype: DType, shape: &[usize]) -> Result<Tensor, CommError> {
        channel::receive(&self.mesh.shared, from, lane, dtype, shape)
    }

    fn aborted(&self) -> Option<usize> {
        self.mesh.abort_cause().map(|abort| abort.by)
    }

    /// The mesh goes on for the control messages beside the operations.
    fn close(&self) {
        self.mesh.shared.close_operations();
    }
}
