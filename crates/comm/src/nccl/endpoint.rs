//! A rank's communicator over NCCL and another one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use cudarc::driver::{CudaEvent, CudaStream};

use super::channels::{self, Channels};
use super::groups::{Groups, Member};
use super::library::{Handle, NcclError, Place};
use super::link::place;
use super::watch::Watched;
use crate::communicator::{Communicator, Pending};
use crate::error::{CommError, OperationKind};
use crate::lock::lock_or_recover;
use runner_compute::gpu::{Gpu, share_with_peers};
use runner_spec::topology::{GroupId, Lane, LocalRanks, Topology};

/// One rank's communicator: tensors of its GPU go through NCCL; bytes, and tensors of the host, go through `host`.
#[derive(Debug)]
pub struct NcclComm {
    watched: Arc<Watched>,
    topology: Topology,
    /// The groups of this rank that sum tensors, in the order of their numbers.
    summing: Vec<GroupId>,
    groups: Groups,
    ranks: LocalRanks,
    attached: OnceLock<Attached>,
    started: Mutex<Started>,
    tickets: AtomicU64,
}

/// The state of a rank whose device is known.
#[derive(Debug)]
struct Attached {
    gpu: Arc<Gpu>,
    channels: Channels,
    watch: Mutex<Option<JoinHandle<()>>>,
}

/// Started operations: their completion events, and the tensors that they keep alive.
type Started = HashMap<u64, (Arc<CudaEvent>, Vec<Tensor>)>;

/// Tickets of the host's operations are apart from NCCL's.
const OURS: u64 = 1 << 63;

impl NcclComm {
    /// `host` is of the same topology. Until `attach` gives it a GPU everything goes through `host`. `summing` are the groups of
    /// this rank whose tensors are summed or broadcast, as all their members say: `attach` connects them.
    #[must_use]
    pub fn over(host: Box<dyn Communicator>, topology: Topology, mut summing: Vec<GroupId>, ranks: LocalRanks) -> Self {
        summing.sort_unstable();
        summing.dedup();
        Self {
            watched: Arc::new(Watched::new(host)),
            topology,
            summing,
            groups: Groups::default(),
            ranks,
            attached: OnceLock::new(),
            started: Mutex::default(),
            tickets: AtomicU64::new(OURS),
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

    /// Runs an operation from or to the rank `root` of a group.
    fn run_rooted(
        &self,
        attached: &Attached,
        kind: OperationKind,
        group: GroupId,
        root: usize,
        buffer: &Tensor,
        operation: fn(&Handle, &Place, usize, &CudaStream) -> Result<(), NcclError>,
    ) -> Result<(), CommError> {
        self.watched.ensure_running(kind)?;
        let Some(Member { link, ranks }) = self.member(attached, group)? else { return Ok(()) };
        let index = ranks.iter().position(|rank| *rank == root);
        let index = index.ok_or(CommError::NotMember { group: group.0, rank: root })?;
        let place = place(buffer).map_err(|what| CommError::Request { operation: kind, what })?;
        let started =
            link.start(kind, attached.gpu.stream(), None, |handle, stream| operation(handle, &place, index, stream));
        self.follow(attached, kind, &*started.map_err(|error| self.failed(kind, &error))?)
    }

    /// Starts sums of tensors on the GPU; `None` in a group of one.
    fn sums(
        &self,
        attached: &Attached,
        group: GroupId,
        tensors: &[Tensor],
    ) -> Result<Option<Arc<CudaEvent>>, CommError> {
        let kind = OperationKind::AllReduce;
        self.watched.ensure_running(kind)?;
        let Some(Member { link, .. }) = self.member(attached, group)? else { return Ok(None) };
        let places = tensors.iter().filter(|t| t.elem_count() > 0).map(place).collect::<Result<Vec<_>, _>>();
        let places = places.map_err(|what| CommError::Request { operation: kind, what })?;
        let started =
            link.start(kind, attached.gpu.stream(), None, |handle, stream| handle.all_reduce(&places, stream));
        started.map(Some).map_err(|error| self.failed(kind, &error))
    }

    fn failed(&self, operation: OperationKind, error: &NcclError) -> CommError {
        self.watched.error(operation, error.to_string())
    }

    /// What is computed from here on waits for `over`.
    fn follow(&self, attached: &Attached, operation: OperationKind, over: &CudaEvent) -> Result<(), CommError> {
        self.watched.waits.follow(&attached.gpu, over).map_err(|error| self.failed(operation, &error))
    }
}

impl Drop for NcclComm {
    fn drop(&mut self) {
        let Some(attached) = self.attached.get() else { return };
        self.watched.close(attached.gpu.stream().context());
        if let Some(watch) = lock_or_recover(&attached.watch).take() {
            watch.thread().unpark();
            let _ = watch.join();
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
        let context = Arc::clone(gpu.stream().context());
        let watched = Arc::clone(&self.watched);
        let watch = thread::Builder::new().name("nccl watch".to_owned());
        // From before the first link: a rank that ends while the others connect is noticed, too.
        let watch = watch.spawn(move || watched.watch(&context)).map_err(CommError::Thread)?;
        let channels = Channels::open(&self.watched, &self.topology, device);
        let open = |channels| {
            self.groups.open(&self.watched, &self.topology, &gpu, &self.summing)?;
            Ok(channels)
        };
        let channels = match channels.and_then(open) {
            Ok(channels) => channels,
            Err(error) => {
                self.watched.close(gpu.stream().context());
                watch.thread().unpark();
                let _ = watch.join();
                return Err(error);
            }
        };
        let _ = self.attached.set(Attached { gpu, channels, watch: Mutex::new(Some(watch)) });
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
        match self.sums(attached, group, std::slice::from_ref(buffer))? {
            Some(over) => self.follow(attached, OperationKind::AllReduce, &over),
            None => Ok(()),
        }
    }

    fn start_all_reduce(&self, group: GroupId, buffers: Vec<Tensor>) -> Result<Pending, CommError> {
        let on_gpu = buffers.first().and_then(|first| self.gpu(first));
        let Some(attached) = on_gpu else { return self.host().start_all_reduce(group, buffers) };
        let Some(over) = self.sums(attached, group, &buffers)? else { return Ok(Pending::completed()) };
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        lock_or_recover(&self.started).insert(ticket, (over, buffers));
        Ok(Pending::new(ticket))
    }

    fn wait(&self, pending: Pending) -> Result<(), CommError> {
        let Some(ticket) = pending.ticket() else { return Ok(()) };
        if ticket < OURS {
            return self.host().wait(pending);
        }
        let started = lock_or_recover(&self.started).remove(&ticket);
        let (Some((over, _buffers)), Some(attached)) = (started, self.attached.get()) else {
            let what = "an operation that another communicator started".to_owned();
            return Err(CommError::Request { operation: OperationKind::Wait, what });
        };
        self.watched.ensure_running(OperationKind::AllReduce)?;
        self.follow(attached, OperationKind::AllReduce, &over)
    }

    fn reduce(&self, group: GroupId, root: usize, buffer: &Tensor) -> Result<(), CommError> {
        let Some(attached) = self.gpu(buffer) else { return self.host().reduce(group, root, buffer) };
        self.run_rooted(attached, OperationKind::Reduce, group, root, buffer, Handle::reduce)
    }

    fn broadcast(&self, group: GroupId, root: usize, buffer: &Tensor) -> Result<(), CommError> {
        let Some(attached) = self.gpu(buffer) else { return self.host().broadcast(group, root, buffer) };
        self.run_rooted(attached, OperationKind::Broadcast, group, root, buffer, Handle::broadcast)
    }

    fn all_gather(&self, group: GroupId, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        self.watched.ensure_running(OperationKind::AllGather)?;
        self.host().all_gather(group, bytes)
    }

    fn barrier(&self, group: GroupId) -> Result<(), CommError> {
        self.watched.ensure_running(OperationKind::Barrier)?;
        self.host().barrier(group)
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

    /// What the host waited, and what the compute stream did. Both at once count twice.
    fn waited(&self) -> Duration {
        self.host().waited() + self.watched.waits.so_far()
    }
}
