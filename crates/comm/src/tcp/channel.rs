//! Messages from rank to rank. A sender has at most as many messages under way as the channel has slots. The receiver reports each
//! message that it takes, which frees its slot.

use candle_core::Tensor;

use super::connections::Connections;
use super::frame::FrameTag;
use crate::channel::ExpectedMessage;
use crate::error::{CommError, ElementType, OperationKind};
use crate::local::FOREGROUND;
use runner_compute::kernels::bytes;
use runner_spec::topology::Channel;

pub(super) fn send(
    shared: &Connections,
    channel: Channel,
    data: &Tensor,
    element: ElementType,
) -> Result<(), CommError> {
    let Channel { to, lane, slots, .. } = channel;
    let bytes = bytes::read(data, <[u8]>::to_vec)?;
    shared.wait_for(OperationKind::Send, FOREGROUND, to, |state| state.take_slot(to, lane, slots))?;
    // The frame is queued without waiting for space: the slots bound the queue.
    shared.send_queues[to].push(FrameTag::Message { lane, element }, bytes);
    Ok(())
}

pub(super) fn receive(shared: &Connections, expected: &ExpectedMessage<'_>) -> Result<Tensor, CommError> {
    let Channel { from, lane, .. } = expected.channel;
    let message = shared.wait_for(OperationKind::Receive, FOREGROUND, from, |state| {
        let (element, bytes) = state.messages.get(&(from, lane))?.front()?;
        // An unexpected message stays in its channel.
        if let Err(error) = expected.check(*element, bytes.len()) {
            return Some(Err(error));
        }
        state.take_message(from, lane).map(Ok)
    })?;
    let bytes = message?;
    shared.send_queues[from].push(FrameTag::SlotFreed { lane }, Vec::new());
    expected.tensor(&bytes)
}
