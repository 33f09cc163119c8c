//! Channels: a link of two ranks for each, so that lanes do not wait for each other.
//!
//! The proof of a plan that its messages cannot wait for each other in a ring asks that a send does not block while the channel
//! has a free slot. Here the host never blocks: the transfer is launched on the channel's stream, and the tensor is kept until it
//! is over. Where all slots are taken, what is computed next waits until the oldest message was received. That holds from the first message on, since each channel is used once when it is made, in one order on all ranks:
//! NCCL connects two ranks in their first transfer, and the host of the sender waits for the receiver then.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::library::{self, ID};
use super::link::{self, Link, place};
use super::watch::Watched;
use crate::error::{CommError, OperationKind};
use runner_compute::gpu::Gpu;
use runner_spec::topology::{GroupId, Lane, Topology};

/// Rank 0 and 1 of a channel's link.
pub(super) const SENDER: usize = 0;
pub(super) const RECEIVER: usize = 1;

#[derive(Debug, Default)]
pub(super) struct Channels {
    ends: HashMap<(usize, usize, Lane), End>,
}

/// This rank's end of a channel.
#[derive(Debug)]
pub(super) struct End {
    link: Arc<Link>,
    slots: usize,
}

impl Channels {
    /// Connects this rank's channels. Called by all ranks at once.
    pub(super) fn open(watched: &Watched, topology: &Topology, device: &Device) -> Result<Self, CommError> {
        let host = &*watched.host;
        let rank = host.rank();
        if topology.channels.is_empty() {
            return Ok(Self::default());
        }
        let all = |ranks: &Vec<usize>| ranks.len() == topology.world_size;
        let Some(world) = topology.groups.iter().position(all) else {
            let what = "no group has all ranks".to_owned();
            return Err(CommError::Request { operation: OperationKind::AllGather, what });
        };
        let failed = |what: String| watched.error(OperationKind::Barrier, what);
        let mut own = Vec::new();
        for _ in topology.channels.iter().filter(|channel| channel.from == rank) {
            own.extend(library::unique_id().map_err(|error| failed(error.to_string()))?);
        }
        let ids = host.all_gather(GroupId(world), &own)?;
        let gpu = Gpu::of_device(device)?;
        let context = gpu.stream().context();
        let mut taken = vec![0; topology.world_size];
        let mut ends = HashMap::new();
        for channel in &topology.channels {
            let at = taken[channel.from];
            taken[channel.from] += ID;
            let me = match rank {
                rank if rank == channel.from => SENDER,
                rank if rank == channel.to => RECEIVER,
                _ => continue,
            };
            let missing =
                || watched.error(OperationKind::AllGather, format!("rank {} sent no id of a channel", channel.from));
            let id = ids.get(channel.from).and_then(|ids| ids.get(at..at + ID)).ok_or_else(missing)?.to_vec();
            let link = watched.add(link::join(host, context, id, 2, me)?);
            // The first transfer, which connects them.
            let word = gpu.zeros(DType::U32, 1)?;
            let there = place(&word).map_err(failed)?;
            let over = link.start(OperationKind::Barrier, gpu.stream(), Some(word), |handle, stream| match me {
                SENDER => handle.send(&there, RECEIVER, stream),
                _ => handle.receive(&there, SENDER, stream),
            });
            over.map_err(|error| failed(error.to_string()))?;
            ends.insert((channel.from, channel.to, channel.lane), End { link, slots: channel.slots });
        }
        Ok(Self { ends })
    }

    pub(super) fn end(&self, from: usize, to: usize, lane: Lane) -> Result<&End, CommError> {
        self.ends.get(&(from, to, lane)).ok_or(CommError::NoChannel { from, to, lane })
    }
}

/// Sends, on the channel's stream, what `data` is when the computation has come here.
pub(super) fn send(watched: &Watched, end: &End, gpu: &Gpu, data: &Tensor) -> Result<(), CommError> {
    let failed = |what: String| watched.error(OperationKind::Send, what);
    // The header of a feed is made on the host.
    let data = if data.device().is_cpu() { data.to_device(&Device::Cuda(gpu.device().clone()))? } else { data.clone() };
    let data = data.contiguous()?;
    let there = place(&data).map_err(failed)?;
    if there.count == 0 {
        return Ok(());
    }
    let operation = |handle: &library::Handle, stream: &_| handle.send(&there, RECEIVER, stream);
    let room = end.link.make_room(&watched.waits, gpu, end.slots);
    let started = room.and_then(|()| end.link.start(OperationKind::Send, gpu.stream(), Some(data), operation));
    started.map(drop).map_err(|error| failed(error.to_string()))
}

/// A tensor that the channel's next message comes into; what is computed from here on waits for it.
pub(super) fn receive(
    watched: &Watched,
    end: &End,
    gpu: &Gpu,
    dtype: DType,
    shape: &[usize],
) -> Result<Tensor, CommError> {
    let failed = |what: String| watched.error(OperationKind::Receive, what);
    let tensor = gpu.empty(dtype, shape)?;
    let there = place(&tensor).map_err(failed)?;
    if there.count == 0 {
        return Ok(tensor);
    }
    let operation = |handle: &library::Handle, stream: &_| handle.receive(&there, SENDER, stream);
    let over = end.link.start(OperationKind::Receive, gpu.stream(), None, operation);
    let followed = over.and_then(|over| watched.waits.follow(gpu, &over));
    followed.map_err(|error| failed(error.to_string()))?;
    Ok(tensor)
}
