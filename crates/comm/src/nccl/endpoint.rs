//! A rank's communicator over NCCL and another communicator.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use cudarc::driver::CudaEvent;

use super::channels::{self, Channels};
use super::groups::{Groups, Member};
use super::library::Transfer;
use super::link::place;
use super::watch::{WatchThread, Watched};
use crate::communicator::{BackgroundOperation, Communicator, Pending};
use crate::error::{CommError, OperationKind};
use runner_compute::gpu::{Gpu, share_with_peers};
use runner_spec::topology::{GroupId, Lane, LocalRanks, Topology};

/// One rank's communicator. Tensors of its GPU go through NCCL; bytes and tensors of the host go through `host`.
#[derive(Debug)]
pub struct NcclComm {
    watched: Arc<Watched>,
    topology: Topology,
    /// The groups of this rank that sum tensors, in the order of their numbers.
    summing: Vec<GroupId>,
    groups: Groups,
    ranks: LocalRanks,
    attached: OnceLock<Attached>,
}

/// The state of a rank whose device is known.
#[derive(Debug)]
struct Attached {
    _watch: WatchThread,
    gpu: Arc<Gpu>,
    channels: Channels,
}

impl NcclComm {
    /// A communicator over `host`, which has the same topology. Everything goes through `host` until `attach` sets a GPU. `summing`
    /// are the groups of this rank whose tensors are summed or broadcast: `attach` connects them. All their members must name them.
    pub fn new(host: Box<dyn Communicator>, topology: Topology, mut summing: Vec<GroupId>, ranks: LocalRanks) -> Self {
        summing.sort_unstable();
        summing.dedup();
        Self {
            watched: Arc::new(Watched::new(host)),
            topology,
            summing,
            groups: Groups::default(),
            ranks,
            attached: OnceLock::new(),
        }
    }

    fn host(&self) -> &dyn Communicator {
        &*self.watched.host
    }

    /// The GPU of a tensor on this rank's GPU; `None` for a tensor of the host.
    fn gpu(&self, tensor: &Tensor) -> Option<&Attached> {
        self.attached.get().filter(|_| tensor.device().is_cuda())
    }

    fn member(&self, attached: &Attached, group: GroupId) -> Result<Option<Member>, CommError> {
        self.groups.link(&self.watched, &self.topology, attached.gpu.stream().context(), group)
    }

    /// Starts a transfer of tensors on the GPU, from or to the rank `root` if it has one. `None` in a group of one.
    fn start_on_gpu(
        &self,
        attached: &Attached,
        kind: OperationKind,
        group: GroupId,
        root: Option<usize>,
        tensors: &[Tensor],
    ) -> Result<Option<Arc<CudaEvent>>, CommError> {
        self.watched.ensure_running(kind)?;
        let Some(Member { link, ranks }) = self.member(attached, group)? else { return Ok(None) };
        let index = |rank: usize| {
            let index = ranks.iter().position(|member| *member == rank);
            index.ok_or(CommError::NotMember { group: group.0, rank })
        };
        let transfer = match (kind, root.map(index).transpose()?) {
            (OperationKind::Reduce, Some(root)) => Transfer::Reduce { root },
            (OperationKind::Broadcast, Some(root)) => Transfer::Broadcast { root },
            _ => Transfer::AllReduce,
        };
        let places = tensors.iter().filter(|t| t.elem_count() > 0).map(place).collect::<Result<Vec<_>, _>>()?;
        let started = link.start(kind, attached.gpu.stream(), None, transfer, &places);
        started.map(Some).map_err(|error| self.watched.error(kind, error))
    }

    /// Runs a transfer of a tensor on the GPU, for which the work from here on waits.
    fn run(
        &self,
        attached: &Attached,
        kind: OperationKind,
        group: GroupId,
        root: Option<usize>,
        buffer: &Tensor,
    ) -> Result<(), CommError> {
        match self.start_on_gpu(attached, kind, group, root, std::slice::from_ref(buffer))? {
            Some(completed) => self.watched.follow(&attached.gpu, kind, &completed),
            None => Ok(()),
        }
    }
}

impl Communicator for NcclComm {
    fn rank(&self) -> usize {
        self.host().rank()
    }

    fn world_size(&self) -> usize {
        self.host().world_size()
    }

    fn attach(&self, device: &Device) -> Result<(), CommError> {
        if !device.is_cuda() || self.attached.get().is_some() {
            return Ok(());
        }
        let gpu = Gpu::of_device(device)?;
        if self.ranks == LocalRanks::Threads && self.world_size() > 1 {
            share_with_peers(&gpu)?;
        }
        // It begins before the first link: a rank that ends while the others connect is noticed, too.
        let watch = WatchThread::spawn(&self.watched, gpu.stream().context())?;
        let channels = Channels::open(&self.watched, &self.topology, device)?;
        self.groups.open(&self.watched, &self.topology, &gpu, &self.summing)?;
        let _ = self.attached.set(Attached { _watch: watch, gpu, channels });
        Ok(())
    }

    fn aborted(&self) -> Option<usize> {
        self.host().aborted()
    }

    fn ensure_running(&self) -> Result<(), CommError> {
        self.watched.ensure_running(OperationKind::Wait)
    }

    fn all_reduce(&self, group: GroupId, buffer: &Tensor) -> Result<(), CommError> {
        let Some(attached) = self.gpu(buffer) else { return self.host().all_reduce(group, buffer) };
        self.run(attached, OperationKind::AllReduce, group, None, buffer)
    }

    fn start(
        &self,
        group: GroupId,
        operation: BackgroundOperation,
        buffers: Vec<Tensor>,
    ) -> Result<Pending, CommError> {
        let on_gpu = buffers.first().and_then(|first| self.gpu(first));
        let Some(attached) = on_gpu else { return self.host().start(group, operation, buffers) };
        let kind = operation.kind();
        let started = self.start_on_gpu(attached, kind, group, operation.root(), &buffers)?;
        let Some(completed) = started else { return Ok(Pending::completed()) };
        // A pending operation does not keep a communicator that was dropped.
        let (watched, gpu) = (Arc::downgrade(&self.watched), Arc::clone(&attached.gpu));
        Ok(Pending::new(move || {
            // The buffers must live until here.
            let _buffers = buffers;
            let watched = watched.upgrade().ok_or(CommError::Closed { operation: OperationKind::Wait })?;
            watched.ensure_running(kind)?;
            watched.follow(&gpu, kind, &completed)
        }))
    }

    fn reduce(&self, group: GroupId, root: usize, buffer: &Tensor) -> Result<(), CommError> {
        let Some(attached) = self.gpu(buffer) else { return self.host().reduce(group, root, buffer) };
        self.run(attached, OperationKind::Reduce, group, Some(root), buffer)
    }

    fn broadcast(&self, group: GroupId, root: usize, buffer: &Tensor) -> Result<(), CommError> {
        let Some(attached) = self.gpu(buffer) else { return self.host().broadcast(group, root, buffer) };
        self.run(attached, OperationKind::Broadcast, group, Some(root), buffer)
    }

    fn all_gather(&self, group: GroupId, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        self.watched.ensure_running(OperationKind::AllGather)?;
        self.host().all_gather(group, bytes)
    }

    fn send(&self, to: usize, lane: Lane, data: &Tensor) -> Result<(), CommError> {
        let Some(attached) = self.attached.get() else { return self.host().send(to, lane, data) };
        self.watched.ensure_running(OperationKind::Send)?;
        channels::send(&self.watched, attached.channels.end(self.rank(), to, lane)?, &attached.gpu, data)
    }

    fn receive(&self, from: usize, lane: Lane, dtype: DType, shape: &[usize]) -> Result<Tensor, CommError> {
        let Some(attached) = self.attached.get() else { return self.host().receive(from, lane, dtype, shape) };
        self.watched.ensure_running(OperationKind::Receive)?;
        let end = attached.channels.end(from, self.rank(), lane)?;
        channels::receive(&self.watched, end, &attached.gpu, dtype, shape)
    }

    /// The waits of the host and those of the compute stream. Waits of both at once count twice.
    fn waited(&self) -> Duration {
        self.host().waited() + self.watched.waits.total()
    }
}
