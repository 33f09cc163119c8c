//! Channels: a ring of slots per (from, to, lane).
//!
//! Message n lies in slot n mod slots. Until `sent` > n the slot is the sender's, then the receiver's until `received` > n.
//! Each counter has one writer. They count messages from 0 and would wrap after 2^64.

use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{DType, Device, Tensor};

use super::layout::{Ring, SlotHeader};
use super::local_rank::LocalRank;
use super::rank_status::FOREGROUND;
use crate::error::{CommError, ElementType, OperationKind};
use crate::host_comm::HostTransport;
use runner_compute::kernels::bytes;
use runner_spec::topology::{Channel, Lane};

pub(super) fn send(core: &LocalRank, to: usize, lane: Lane, data: &Tensor) -> Result<(), CommError> {
    let from = core.rank;
    let (index, _alone) = core.channel(from, to, lane)?;
    let slot_bytes = core.region.topology.channels[index].slot_bytes;
    let element = ElementType::from_dtype(data.dtype());
    let element = element
        .ok_or_else(|| CommError::Request { operation: OperationKind::Send, what: format!("no {:?}", data.dtype()) })?;
    let length = data.elem_count() * data.dtype().size_in_bytes();
    if length > slot_bytes {
        return Err(CommError::TooLong { from, to, lane, bytes: length, slot_bytes });
    }
    let slots = Slots::new(core, index);
    core.ensure_running(OperationKind::Send)?;
    let number = slots.ring.sent.0.load(Ordering::Relaxed);
    let received = &slots.ring.received.0;
    let free = || number.wrapping_sub(received.load(Ordering::Acquire)) < slots.count;
    core.wait_for(OperationKind::Send, FOREGROUND, to, free)?;
    let (header, at) = slots.slot(number);
    #[expect(unsafe_code, reason = "shared memory")]
    // SAFETY: the slot is the sender's until `sent` is stored, which only this rank does, under the channel's lock; it has
    // `slot_bytes` bytes, checked above to be enough.
    bytes::read(data, |from| unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at, from.len()) })?;
    header.bytes.store(length as u64, Ordering::Relaxed);
    header.element.store(element as u64, Ordering::Relaxed);
    grow(&slots.ring.sent.0, number);
    core.region.status_of(to).wake_signals[FOREGROUND].wake_all();
    Ok(())
}

pub(super) fn receive(
    core: &LocalRank,
    from: usize,
    lane: Lane,
    dtype: DType,
    shape: &[usize],
) -> Result<Tensor, CommError> {
    let to = core.rank;
    let (index, _alone) = core.channel(from, to, lane)?;
    let slots = Slots::new(core, index);
    core.ensure_running(OperationKind::Receive)?;
    let number = slots.ring.received.0.load(Ordering::Relaxed);
    let sent = &slots.ring.sent.0;
    core.wait_for(OperationKind::Receive, FOREGROUND, from, || sent.load(Ordering::Acquire) != number)?;
    let (header, at) = slots.slot(number);
    let sent = header.bytes.load(Ordering::Relaxed);
    let element = ElementType::from_code(header.element.load(Ordering::Relaxed));
    let expected = (shape.iter().product::<usize>() * dtype.size_in_bytes()) as u64;
    if element.dtype() != dtype || sent != expected || sent > slots.channel.slot_bytes as u64 {
        return Err(CommError::Message { from, to, lane, sent, element, dtype, shape: shape.to_vec(), expected });
    }
    #[expect(unsafe_code, reason = "shared memory")]
    // SAFETY: the slot is the receiver's until `received` is stored, and so many bytes of it were written.
    let message = unsafe { std::slice::from_raw_parts(at, sent as usize) };
    let tensor = Tensor::from_raw_buffer(message, dtype, shape, &Device::Cpu)?;
    grow(&slots.ring.received.0, number);
    core.region.status_of(from).wake_signals[FOREGROUND].wake_all();
    Ok(tensor)
}

fn grow(counter: &AtomicU64, number: u64) {
    counter.store(number.wrapping_add(1), Ordering::Release);
}

struct Slots<'a> {
    core: &'a LocalRank,
    index: usize,
    channel: Channel,
    ring: &'a Ring,
    count: u64,
}

impl<'a> Slots<'a> {
    fn new(core: &'a LocalRank, index: usize) -> Self {
        let channel = core.region.topology.channels[index];
        let ring = core.region.at(core.region.layout.ring(index));
        Self { core, index, channel, ring, count: channel.slots as u64 }
    }

    /// The header and the bytes of message `number`.
    fn slot(&self, number: u64) -> (&'a SlotHeader, *mut u8) {
        let region = &self.core.region;
        let at = region.layout.slot(self.index, (number % self.count) as usize);
        (region.at(at), region.pointer(at + size_of::<SlotHeader>(), self.channel.slot_bytes))
    }
}
