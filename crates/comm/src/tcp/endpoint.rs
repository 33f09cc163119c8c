//! A rank's communicator over a mesh.

use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use candle_core::{DType, Tensor};

use super::channel;
use super::collective::{self, Membership, Work};
use super::mesh::Mesh;
use super::rendezvous::JoinError;
use crate::background::{Background, Reduces};
use crate::communicator::{Communicator, Pending};
use crate::error::{CommError, Element, Kind};
use crate::local::{BACKGROUND, Buffers, FOREGROUND, Request, buffers, sum_request};
use runner_spec::topology::{GroupId, Lane, Topology};

/// One rank's end of a mesh whose ranks agree on a plan.
pub struct TcpComm {
    core: Arc<Core>,
    background: Background,
    /// Nanoseconds in operations.
    waited: AtomicU64,
}

struct Core {
    mesh: Arc<Mesh>,
    /// Per group of the topology; `None` where this rank is no member.
    memberships: Vec<Option<Membership>>,
}

impl std::fmt::Debug for TcpComm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpComm").field("rank", &self.rank()).field("waited", &self.waited()).finish_non_exhaustive()
    }
}

impl Core {
    fn membership(&self, group: GroupId) -> Result<&Membership, CommError> {
        let membership = self.memberships.get(group.0).and_then(Option::as_ref);
        membership.ok_or(CommError::NotMember { group: group.0, rank: self.mesh.rank() })
    }

    fn run(&self, group: GroupId, line: usize, request: Request, work: Work<'_, '_>) -> Result<(), CommError> {
        collective::run(&self.mesh.shared, self.membership(group)?, line, request, work)
    }
}

impl Reduces for Core {
    fn rank(&self) -> usize {
        self.mesh.rank()
    }

    fn all_reduce_started(&self, group: GroupId, tensors: &[Tensor]) -> Result<(), CommError> {
        let buffers = buffers(Kind::AllReduce, tensors)?;
        let request = sum_request(Kind::AllReduce, None, &buffers)?;
        self.run(group, BACKGROUND, request, Work::Sum(&buffers))
    }
}

impl TcpComm {
    /// The communicator of `mesh` for `topology`, once all its ranks have `plan`.
    ///
    /// # Errors
    /// As `Mesh::agree`.
    pub fn new(mesh: Arc<Mesh>, plan: &str, topology: &Topology) -> Result<Self, JoinError> {
        mesh.agree(plan, topology)?;
        let rank = mesh.rank();
        let groups = topology.groups.iter().enumerate();
        let memberships = groups.map(|(group, ranks)| Membership::new(group, ranks, rank)).collect();
        let core = Arc::new(Core { mesh, memberships });
        Ok(Self { core, background: Background::default(), waited: AtomicU64::new(0) })
    }

    fn timed<R>(&self, f: impl FnOnce() -> R) -> R {
        let started = Instant::now();
        let result = f();
        self.waited.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }

    fn run(&self, group: GroupId, request: Request, work: Work<'_, '_>) -> Result<(), CommError> {
        self.timed(|| self.core.run(group, FOREGROUND, request, work))
    }

    pub fn mesh(&self) -> &Arc<Mesh> {
        &self.core.mesh
    }
}

impl Drop for TcpComm {
    fn drop(&mut self) {
        // What was started and waits ends. The mesh goes on for what ranks tell each other beside the operations.
        self.core.mesh.shared.close_operations();
        self.background.close();
    }
}

impl Communicator for TcpComm {
    fn rank(&self) -> usize {
        self.core.mesh.rank()
    }

    fn world_size(&self) -> usize {
        self.core.mesh.world_size()
    }

    fn all_reduce(&self, group: GroupId, buffer: &Tensor) -> Result<(), CommError> {
        let buffers = buffers(Kind::AllReduce, slice::from_ref(buffer))?;
        self.run(group, sum_request(Kind::AllReduce, None, &buffers)?, Work::Sum(&buffers))
    }

    fn start_all_reduce(&self, group: GroupId, tensors: Vec<Tensor>) -> Result<Pending, CommError> {
        let members = self.core.membership(group)?.ranks.len();
        let request = sum_request(Kind::AllReduce, None, &buffers(Kind::AllReduce, &tensors)?)?;
        self.core.mesh.shared.alive(request.kind)?;
        if members == 1 {
            return Ok(Pending::over());
        }
        self.background.start(&self.core, group, tensors)
    }

    fn wait(&self, pending: Pending) -> Result<(), CommError> {
        self.timed(|| self.background.wait(&pending, self.core.mesh.seat()))
    }

    fn reduce(&self, group: GroupId, root: usize, buffer: &Tensor) -> Result<(), CommError> {
        let buffers = buffers(Kind::Reduce, slice::from_ref(buffer))?;
        self.run(group, sum_request(Kind::Reduce, Some(root), &buffers)?, Work::Sum(&buffers))
    }

    fn broadcast(&self, group: GroupId, root: usize, buffer: &Tensor) -> Result<(), CommError> {
        let buffers = buffers(Kind::Broadcast, slice::from_ref(buffer))?;
        let Buffers { element, bytes, .. } = buffers;
        let request = Request { kind: Kind::Broadcast, element, bytes, root: Some(root) };
        self.run(group, request, Work::Broadcast(&buffers))
    }

    fn all_gather(&self, group: GroupId, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        let request = Request { kind: Kind::AllGather, element: Element::Bytes, bytes: bytes.len(), root: None };
        let mut all = Vec::new();
        self.run(group, request, Work::Gather { mine: bytes, all: &mut all })?;
        Ok(all)
    }

    fn barrier(&self, group: GroupId) -> Result<(), CommError> {
        let request = Request { kind: Kind::Barrier, element: Element::Bytes, bytes: 0, root: None };
        self.run(group, request, Work::Barrier)
    }

    fn send(&self, to: usize, lane: Lane, data: &Tensor) -> Result<(), CommError> {
        self.timed(|| channel::send(&self.core.mesh.shared, to, lane, data))
    }

    fn receive(&self, from: usize, lane: Lane, dtype: DType, shape: &[usize]) -> Result<Tensor, CommError> {
        self.timed(|| channel::receive(&self.core.mesh.shared, from, lane, dtype, shape))
    }

    fn aborted(&self) -> Option<usize> {
        self.mesh().ended().map(|ended| ended.by)
    }

    fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }
}
