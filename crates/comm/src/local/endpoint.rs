//! A rank's communicator over a region.

use std::fmt;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use candle_core::{DType, Tensor};

use super::board::{BACKGROUND, FOREGROUND, Seat};
use super::channel;
use super::collective::{self, Request};
use super::core::Core;
use super::region::{Region, RegionError};
use super::work::{Barrier, Broadcast, Buffers, Gather, Sum};
use crate::background::{Background, Reduces};
use crate::communicator::{Communicator, Pending};
use crate::error::{CommError, Element, Kind};
use runner_spec::topology::{GroupId, Lane};

/// One rank's end of a region. Dropped, it ends what it started and gives the rank free.
pub struct LocalComm {
    core: Arc<Core>,
    background: Background,
    /// Nanoseconds in operations.
    waited: AtomicU64,
}

impl fmt::Debug for LocalComm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalComm").field("core", &self.core).field("waited", &self.waited()).finish_non_exhaustive()
    }
}

impl LocalComm {
    /// # Errors
    /// If there is no such rank, or somebody has it.
    pub fn new(region: Arc<Region>, rank: usize) -> Result<Self, RegionError> {
        let core = Arc::new(Core::new(region, rank)?);
        Ok(Self { core, background: Background::default(), waited: AtomicU64::new(0) })
    }

    /// How long an operation may wait for a rank before it is a `Timeout`; 30 minutes at first.
    pub fn set_limit(&self, limit: Duration) {
        self.core.set_limit(limit);
    }

    pub fn region(&self) -> &Arc<Region> {
        &self.core.region
    }

    /// This rank's line of the board.
    pub fn seat(&self) -> &Seat {
        self.core.seat()
    }

    fn timed<R>(&self, f: impl FnOnce() -> R) -> R {
        let started = Instant::now();
        let result = f();
        self.waited.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }

    fn run(&self, group: GroupId, request: Request, work: &mut dyn super::work::Work) -> Result<(), CommError> {
        self.timed(|| collective::run(&self.core, group, FOREGROUND, request, work))
    }
}

impl Drop for LocalComm {
    fn drop(&mut self) {
        self.core.close();
        self.background.close();
    }
}

impl Reduces for Core {
    fn rank(&self) -> usize {
        self.rank
    }

    fn all_reduce_started(&self, group: GroupId, tensors: &[Tensor]) -> Result<(), CommError> {
        let buffers = buffers(Kind::AllReduce, tensors)?;
        let request = sum_request(Kind::AllReduce, None, &buffers)?;
        collective::run(self, group, BACKGROUND, request, &mut Sum { buffers })
    }
}

pub fn buffers(operation: Kind, tensors: &[Tensor]) -> Result<Buffers<'_>, CommError> {
    Buffers::new(tensors).map_err(|what| CommError::Request { operation, what })
}

/// # Errors
/// If the buffers cannot be summed.
pub fn sum_request(kind: Kind, root: Option<usize>, buffers: &Buffers) -> Result<Request, CommError> {
    if !matches!(buffers.element, Element::F32 | Element::F64 | Element::Bytes) {
        return Err(CommError::Request {
            operation: kind,
            what: format!("sums are of f32 or f64, not {}", buffers.element),
        });
    }
    Ok(Request { kind, element: buffers.element, bytes: buffers.bytes, root })
}

impl Communicator for LocalComm {
    fn rank(&self) -> usize {
        self.core.rank
    }

    fn world_size(&self) -> usize {
        self.core.region.world_size()
    }

    fn all_reduce(&self, group: GroupId, buffer: &Tensor) -> Result<(), CommError> {
        let buffers = buffers(Kind::AllReduce, slice::from_ref(buffer))?;
        self.run(group, sum_request(Kind::AllReduce, None, &buffers)?, &mut Sum { buffers })
    }

    fn start_all_reduce(&self, group: GroupId, tensors: Vec<Tensor>) -> Result<Pending, CommError> {
        let members = self.core.membership(group)?.ranks.len();
        let request = sum_request(Kind::AllReduce, None, &buffers(Kind::AllReduce, &tensors)?)?;
        self.core.alive(request.kind)?;
        if members == 1 {
            return Ok(Pending::over());
        }
        self.background.start(&self.core, group, tensors)
    }

    fn wait(&self, pending: Pending) -> Result<(), CommError> {
        self.timed(|| self.background.wait(&pending, self.core.seat()))
    }

    fn reduce(&self, group: GroupId, root: usize, buffer: &Tensor) -> Result<(), CommError> {
        let buffers = buffers(Kind::Reduce, slice::from_ref(buffer))?;
        self.run(group, sum_request(Kind::Reduce, Some(root), &buffers)?, &mut Sum { buffers })
    }

    fn broadcast(&self, group: GroupId, root: usize, buffer: &Tensor) -> Result<(), CommError> {
        let buffers = buffers(Kind::Broadcast, slice::from_ref(buffer))?;
        let Buffers { element, bytes, .. } = buffers;
        let request = Request { kind: Kind::Broadcast, element, bytes, root: Some(root) };
        self.run(group, request, &mut Broadcast { buffers })
    }

    fn all_gather(&self, group: GroupId, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        let request = Request { kind: Kind::AllGather, element: Element::Bytes, bytes: bytes.len(), root: None };
        let mut gather = Gather::new(bytes);
        self.run(group, request, &mut gather)?;
        Ok(gather.all)
    }

    fn barrier(&self, group: GroupId) -> Result<(), CommError> {
        let request = Request { kind: Kind::Barrier, element: Element::Bytes, bytes: 0, root: None };
        self.run(group, request, &mut Barrier)
    }

    fn send(&self, to: usize, lane: Lane, data: &Tensor) -> Result<(), CommError> {
        self.timed(|| channel::send(&self.core, to, lane, data))
    }

    fn receive(&self, from: usize, lane: Lane, dtype: DType, shape: &[usize]) -> Result<Tensor, CommError> {
        self.timed(|| channel::receive(&self.core, from, lane, dtype, shape))
    }

    fn aborted(&self) -> Option<usize> {
        self.core.region.aborted()
    }

    fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }
}
