//! A rank's communicator over NCCL and another communicator.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use cudarc::driver::CudaEvent;

use super::channels::{self, Channels};
use super::groups::{self, Member};
use super::library::Transfer;
use super::link::place;
use super::watch::{WatchThread, Watched};
use crate::communicator::{Communicator, GroupOperation, Pending, TensorOperation};
use crate::error::{CommError, OperationKind};
use runner_compute::gpu::Gpu;
use runner_spec::topology::{GroupId, Lane, Topology};

/// One rank's communicator. Tensors of its GPU go through NCCL; bytes and tensors of the host go through `host`.
#[derive(Debug)]
pub struct NcclComm {
    watched: Arc<Watched>,
    topology: Topology,
    /// The groups of this rank that sum tensors, in the order of their numbers.
    summing: Vec<GroupId>,
    attached: OnceLock<Attached>,
}

/// The state of a rank whose device is known.
#[derive(Debug)]
struct Attached {
    _watch: WatchThread,
    gpu: Arc<Gpu>,
    channels: Channels,
    groups: HashMap<GroupId, Option<Member>>,
}

impl NcclComm {
    /// A communicator over `host`, which has the same topology. Everything goes through `host` until `attach` sets a GPU. `summing`
    /// are the groups of this rank whose tensors are summed or broadcast: `attach` connects them. All their members must name them.
    pub fn new(host: Box<dyn Communicator>, topology: Topology, mut summing: Vec<GroupId>) -> Self {
        summing.sort_unstable();
        summing.dedup();
        Self { watched: Arc::new(Watched::new(host)), topology, summing, attached: OnceLock::new() }
    }

    fn host(&self) -> &dyn Communicator {
        &*self.watched.host
    }

    /// The GPU of a tensor on this rank's GPU; `None` for a tensor of the host.
    fn gpu(&self, tensor: &Tensor) -> Option<&Attached> {
        self.attached.get().filter(|_| tensor.device().is_cuda())
    }

    /// Starts transfers of tensors on the GPU as one operation; `kind` is the first transfer's. `None` in a group of one.
    fn start_on_gpu(
        &self,
        attached: &Attached,
        group: GroupId,
        kind: OperationKind,
        operations: &[TensorOperation],
    ) -> Result<Option<Arc<CudaEvent>>, CommError> {
        self.watched.ensure_running(kind)?;
        let rank = self.rank();
        let member = attached.groups.get(&group).ok_or(CommError::NotMember { group: group.0, rank })?;
        let Some(Member { link, ranks }) = member else { return Ok(None) };
        let index = |rank: usize| {
            let index = ranks.iter().position(|member| *member == rank);
            index.ok_or(CommError::NotMember { group: group.0, rank })
        };
        let mut transfers = Vec::new();
        for (operation, tensors) in operations {
            let transfer = match *operation {
                GroupOperation::AllReduce => Transfer::AllReduce,
                GroupOperation::Reduce { root } => Transfer::Reduce { root: index(root)? },
                GroupOperation::Broadcast { root } => Transfer::Broadcast { root: index(root)? },
            };
            for tensor in tensors.iter().filter(|tensor| tensor.elem_count() > 0) {
                transfers.push((transfer, place(tensor)?));
            }
        }
        let started = link.start(kind, attached.gpu.stream(), None, &transfers);
        started.map(Some).map_err(|error| self.watched.error(kind, error))
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
        // It begins before the first link: a rank that ends while the others connect is noticed, too.
        let watch = WatchThread::spawn(&self.watched, gpu.stream().context())?;
        let channels = Channels::open(&self.watched, &self.topology, device)?;
        let groups = groups::open(&self.watched, &self.topology, &gpu, &self.summing)?;
        let _ = self.attached.set(Attached { _watch: watch, gpu, channels, groups });
        Ok(())
    }

    fn aborted(&self) -> Option<usize> {
        self.host().aborted()
    }

    fn ensure_running(&self) -> Result<(), CommError> {
        self.watched.ensure_running(OperationKind::Wait)
    }

    fn run(&self, group: GroupId, operation: GroupOperation, buffer: &Tensor) -> Result<(), CommError> {
        let Some(attached) = self.gpu(buffer) else { return self.host().run(group, operation, buffer) };
        let kind = operation.kind();
        match self.start_on_gpu(attached, group, kind, &[(operation, vec![buffer.clone()])])? {
            Some(completed) => self.watched.follow(&attached.gpu, kind, &completed),
            None => Ok(()),
        }
    }

    fn start(&self, group: GroupId, operations: Vec<TensorOperation>) -> Result<Pending, CommError> {
        let first = operations.first().and_then(|(operation, tensors)| Some((operation.kind(), tensors.first()?)));
        let on_gpu = first.and_then(|(kind, tensor)| Some((kind, self.gpu(tensor)?)));
        let Some((kind, attached)) = on_gpu else { return self.host().start(group, operations) };
        let started = self.start_on_gpu(attached, group, kind, &operations)?;
        let Some(completed) = started else { return Ok(Pending::completed()) };
        // A pending operation does not keep a communicator that was dropped.
        let (watched, gpu) = (Arc::downgrade(&self.watched), Arc::clone(&attached.gpu));
        Ok(Pending::new(move || {
            // The tensors must live until here.
            let _tensors = operations;
            let watched = watched.upgrade().ok_or(CommError::Closed { operation: OperationKind::Wait })?;
            watched.ensure_running(kind)?;
            watched.follow(&gpu, kind, &completed)
        }))
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
