//! Channels: each is a link of two ranks, so that lanes do not wait for each other.
//!
//! The proof that a plan's messages cannot wait for each other in a ring requires that a send does not block while the channel has a
//! free slot. Here the host never blocks: the transfer is launched on the channel's stream, and the tensor is kept until it has ended.
//! If all slots are taken, the next computation waits until the oldest message was received. NCCL connects two ranks in their first
//! transfer, in which the host of the sender waits for the receiver. So each channel is used once when it is made, in one order on all
//! ranks.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::library::{self, ID_BYTES, NcclError, Transfer};
use super::link::{self, Link, place};
use super::watch::Watched;
use crate::error::{CommError, OperationKind};
use runner_compute::gpu::Gpu;
use runner_spec::topology::{CHANNEL_BLOCKS, GroupId, Lane, Topology};

/// The members of a channel's link.
const SENDER: usize = 0;
const RECEIVER: usize = 1;

const SEND: Transfer = Transfer::Send { to: RECEIVER };
const RECEIVE: Transfer = Transfer::Receive { from: SENDER };

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
        let failed = |error: NcclError| watched.error(OperationKind::Connect, error);
        let mut own = Vec::new();
        for _ in topology.channels.iter().filter(|channel| channel.from == rank) {
            own.extend(library::unique_id().map_err(failed)?);
        }
        let ids = host.all_gather(GroupId(world), &own)?;
        let gpu = Gpu::of_device(device)?;
        let context = gpu.stream().context();
        let mut taken = vec![0; topology.world_size];
        let mut ends = HashMap::new();
        for channel in &topology.channels {
            let at = taken[channel.from];
            taken[channel.from] += ID_BYTES;
            let me = match rank {
                rank if rank == channel.from => SENDER,
                rank if rank == channel.to => RECEIVER,
                _ => continue,
            };
            let missing =
                || watched.error(OperationKind::AllGather, format!("rank {} sent no id of a channel", channel.from));
            let id = ids.get(channel.from).and_then(|ids| ids.get(at..at + ID_BYTES)).ok_or_else(missing)?.to_vec();
            let link = watched.add(link::join(host, context, id, 2, me, CHANNEL_BLOCKS)?);
            // The first transfer, which connects them.
            let word = gpu.zeros(DType::U32, 1)?;
            let transfer = (if me == SENDER { SEND } else { RECEIVE }, place(&word)?);
            let started = link.start(OperationKind::Connect, gpu.stream(), Some(word), &[transfer]);
            started.map_err(failed)?;
            ends.insert((channel.from, channel.to, channel.lane), End { link, slots: channel.slots });
        }
        Ok(Self { ends })
    }

    pub(super) fn end(&self, from: usize, to: usize, lane: Lane) -> Result<&End, CommError> {
        self.ends.get(&(from, to, lane)).ok_or(CommError::NoChannel { from, to, lane })
    }
}

/// Sends `data` on the channel's stream, after the work so far on the compute stream.
pub(super) fn send(watched: &Watched, end: &End, gpu: &Gpu, data: &Tensor) -> Result<(), CommError> {
    // The header of a feed is made on the host.
    let data = if data.device().is_cpu() { data.to_device(&Device::Cuda(gpu.device().clone()))? } else { data.clone() };
    let data = data.contiguous()?;
    let place = place(&data)?;
    if place.count == 0 {
        return Ok(());
    }
    let freed = end.link.free_slot(&watched.waits, gpu, end.slots);
    let started = freed.and_then(|()| end.link.start(OperationKind::Send, gpu.stream(), Some(data), &[(SEND, place)]));
    started.map(drop).map_err(|error| watched.error(OperationKind::Send, error))
}

/// Receives the channel's next message into a new tensor, for which the work from here on waits.
pub(super) fn receive(
    watched: &Watched,
    end: &End,
    gpu: &Gpu,
    dtype: DType,
    shape: &[usize],
) -> Result<Tensor, CommError> {
    let tensor = gpu.empty(dtype, shape)?;
    let place = place(&tensor)?;
    if place.count == 0 {
        return Ok(tensor);
    }
    let started = end.link.start(OperationKind::Receive, gpu.stream(), None, &[(RECEIVE, place)]);
    let followed = started.and_then(|completed| watched.waits.follow(gpu, &completed));
    followed.map_err(|error| watched.error(OperationKind::Receive, error))?;
    Ok(tensor)
}
