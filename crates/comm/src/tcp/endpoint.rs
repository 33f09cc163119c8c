//! A rank's communicator over a mesh of TCP connections.

use std::sync::Arc;

use candle_core::{DType, Tensor};

use super::collective::Membership;
use super::mesh::Mesh;
use super::rendezvous::JoinError;
use super::{channel, collective};
use crate::collective::{Collective, Request};
use crate::error::{CommError, OperationKind};
use crate::host_comm::{HostComm, HostTransport};
use crate::local::RankStatus;
use runner_spec::topology::{GroupId, Lane, Topology};

/// One rank's end of a mesh whose ranks agree on a plan.
pub type TcpComm = HostComm<MeshRank>;

pub struct MeshRank {
    mesh: Arc<Mesh>,
    /// Per group of the topology; `None` where this rank is no member.
    memberships: Vec<Option<Membership>>,
}

impl MeshRank {
    fn membership(&self, group: GroupId) -> Result<&Membership, CommError> {
        let membership = self.memberships.get(group.0).and_then(Option::as_ref);
        membership.ok_or(CommError::NotMember { group: group.0, rank: self.mesh.rank() })
    }
}

impl HostComm<MeshRank> {
    /// The communicator of `mesh` for `topology`, once all its ranks have `plan`.
    ///
    /// # Errors
    /// Those of `Mesh::agree_on_plan`.
    pub fn new(mesh: Arc<Mesh>, plan: &str, topology: &Topology) -> Result<Self, JoinError> {
        mesh.agree_on_plan(plan, topology)?;
        let rank = mesh.rank();
        let groups = topology.groups.iter().enumerate();
        let memberships = groups.map(|(group, ranks)| Membership::new(group, ranks, rank)).collect();
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

    fn group_size(&self, group: GroupId) -> Result<usize, CommError> {
        Ok(self.membership(group)?.ranks.len())
    }

    fn ensure_running(&self, operation: OperationKind) -> Result<(), CommError> {
        self.mesh.shared.ensure_running(operation)
    }

    fn run(&self, group: GroupId, queue: usize, request: Request, work: Collective<'_>) -> Result<(), CommError> {
        collective::run(&self.mesh.shared, self.membership(group)?, queue, request, work)
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
