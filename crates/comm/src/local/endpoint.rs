//! A rank's communicator over a region.
//!
//! A channel is a ring of slots. Message n lies in slot n mod slots. Until `sent` > n the slot is the sender's, then the receiver's until
//! `received` > n. Each counter has one writer. They count messages from 0.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use candle_core::Tensor;

use super::layout::{Ring, SlotHeader};
use super::local_rank::LocalRank;
use super::region::Region;
use crate::collective::{Collective, RunningCollective};
use crate::error::{CommError, ElementType, JoinError, OperationKind};
use crate::group::{FOREGROUND, QueuePosition, RankTopology};
use crate::host_comm::{ExpectedMessage, HostComm, HostTransport};
use crate::rank_status::RankStatus;
use crate::waiting::WakeSignal;
use runner_compute::kernels::bytes;
use runner_spec::topology::Channel;

/// One rank's end of a region. A rank can be taken once.
pub type LocalComm = HostComm<LocalRank>;

impl HostComm<LocalRank> {
    /// # Errors
    /// If there is no such rank, or it is taken.
    pub fn new(region: Arc<Region>, rank: usize) -> Result<Self, JoinError> {
        let topology = RankTopology::new(&region.topology, rank);
        Ok(Self::with_transport(LocalRank::new(region, rank)?, topology))
    }

    /// Sets how long an operation may wait for a rank before it fails with `Timeout`; 30 minutes at first.
    pub fn set_operation_timeout(&self, timeout: Duration) {
        self.own.transport.timeout.set(timeout);
    }
}

impl HostTransport for LocalRank {
    fn status(&self) -> &RankStatus {
        self.region.status_of(self.rank)
    }

    fn ensure_running(&self, operation: OperationKind) -> Result<(), CommError> {
        if let Some(by) = self.region.aborted() {
            return Err(CommError::Aborted { by });
        }
        if self.is_closing.load(Ordering::Relaxed) {
            return Err(CommError::Closed { operation });
        }
        Ok(())
    }

    fn run(
        running: &RunningCollective<'_, Self>,
        position: &mut QueuePosition,
        mut work: Collective<'_>,
    ) -> Result<(), CommError> {
        let pieces = running.run_pieces(position.next_piece, &mut work)?;
        position.next_piece += pieces as u64;
        Ok(())
    }

    fn send(&self, index: usize, channel: Channel, data: &Tensor, element: ElementType) -> Result<(), CommError> {
        let _alone = self.channels[index].lock();
        let slots = Slots::new(self, index, channel);
        let number = slots.ring.sent.0.load(Ordering::Relaxed);
        let received = &slots.ring.received.0;
        let is_free = || number - received.load(Ordering::Acquire) < slots.channel.slots as u64;
        self.wait_for(OperationKind::Send, FOREGROUND, slots.channel.to, is_free)?;
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
        self.wake(slots.channel.to, FOREGROUND);
        Ok(())
    }

    fn receive(&self, index: usize, expected: &ExpectedMessage<'_>) -> Result<Tensor, CommError> {
        let _alone = self.channels[index].lock();
        let slots = Slots::new(self, index, expected.channel);
        let from = slots.channel.from;
        let number = slots.ring.received.0.load(Ordering::Relaxed);
        let sent = &slots.ring.sent.0;
        self.wait_for(OperationKind::Receive, FOREGROUND, from, || sent.load(Ordering::Acquire) != number)?;
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
        self.wake(from, FOREGROUND);
        Ok(tensor)
    }

    fn aborted(&self) -> Option<usize> {
        self.region.aborted()
    }

    fn close(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
        self.status().wake_signals.iter().for_each(WakeSignal::wake_all);
    }
}

/// A channel of a region.
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
