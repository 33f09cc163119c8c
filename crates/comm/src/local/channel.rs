//! Channels: a ring of slots per (from, to, lane).
//!
//! Message n lies in slot n mod slots. Until `sent` > n the slot is the sender's, then the receiver's until `received` > n.
//! Each counter has one writer. They count messages from 0.

use std::sync::atomic::Ordering;

use candle_core::Tensor;

use super::layout::{Ring, SlotHeader};
use super::local_rank::LocalRank;
use crate::error::{CommError, ElementType, OperationKind};
use crate::group::FOREGROUND;
use crate::host_comm::ExpectedMessage;
use runner_compute::kernels::bytes;
use runner_spec::topology::Channel;

pub(super) fn send(
    own: &LocalRank,
    index: usize,
    channel: Channel,
    data: &Tensor,
    element: ElementType,
) -> Result<(), CommError> {
    let _alone = own.channels[index].lock();
    let slots = Slots::new(own, index, channel);
    let number = slots.ring.sent.0.load(Ordering::Relaxed);
    let received = &slots.ring.received.0;
    let is_free = || number - received.load(Ordering::Acquire) < slots.channel.slots as u64;
    own.wait_for(OperationKind::Send, FOREGROUND, slots.channel.to, is_free)?;
    let (header, message) = slots.slot(number);
    let mut length = 0;
    bytes::read(data, |from| {
        length = from.len();
        #[expect(unsafe_code, reason = "shared memory")]
        // SAFETY: the slot is the sender's until `sent` is stored, which only this rank does, under the channel's lock; the caller
        // has checked that `slot_bytes` bytes are enough.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), message, length);
        }
    })?;
    header.bytes.store(length as u64, Ordering::Relaxed);
    header.element.store(element as u64, Ordering::Relaxed);
    slots.ring.sent.0.store(number + 1, Ordering::Release);
    own.wake(slots.channel.to, FOREGROUND);
    Ok(())
}

pub(super) fn receive(own: &LocalRank, index: usize, expected: &ExpectedMessage<'_>) -> Result<Tensor, CommError> {
    let _alone = own.channels[index].lock();
    let slots = Slots::new(own, index, expected.channel);
    let from = slots.channel.from;
    let number = slots.ring.received.0.load(Ordering::Relaxed);
    let sent = &slots.ring.sent.0;
    own.wait_for(OperationKind::Receive, FOREGROUND, from, || sent.load(Ordering::Acquire) != number)?;
    let (header, message) = slots.slot(number);
    let length = header.bytes.load(Ordering::Relaxed) as usize;
    // An unexpected message stays in its slot.
    expected.check(ElementType::from_code(header.element.load(Ordering::Relaxed)), length)?;
    #[expect(unsafe_code, reason = "shared memory")]
    // SAFETY: the slot is the receiver's until `received` is stored. `length` bytes of it were written, at most `slot_bytes`, as
    // was checked.
    let message = unsafe { std::slice::from_raw_parts(message, length) };
    let tensor = expected.tensor(message)?;
    slots.ring.received.0.store(number + 1, Ordering::Release);
    own.wake(from, FOREGROUND);
    Ok(tensor)
}

struct Slots<'a> {
    own: &'a LocalRank,
    index: usize,
    channel: Channel,
    ring: &'a Ring,
}

impl<'a> Slots<'a> {
    fn new(own: &'a LocalRank, index: usize, channel: Channel) -> Self {
        Self { own, index, channel, ring: own.region.object_at(own.region.layout.ring(index)) }
    }

    /// The header and the bytes of message `number`.
    fn slot(&self, number: u64) -> (&'a SlotHeader, *mut u8) {
        let region = &self.own.region;
        let offset = region.layout.slot(self.index, (number % self.channel.slots as u64) as usize);
        (region.object_at(offset), region.pointer(offset + size_of::<SlotHeader>(), self.channel.slot_bytes))
    }
}
