//! Messages from rank to rank. A sender has at most as many messages on their way as the channel has slots. The receiver reports each
//! message that it takes, which frees its slot.

use candle_core::{DType, Device, Tensor};

use super::connections::Connections;
use super::frame::FrameTag;
use crate::error::{CommError, ElementType, OperationKind};
use crate::local::FOREGROUND;
use runner_compute::kernels::bytes;
use runner_spec::topology::{Channel, Lane};

fn channel(shared: &Connections, from: usize, to: usize, lane: Lane) -> Result<Channel, CommError> {
    shared.channel(from, to, lane).ok_or(CommError::NoChannel { from, to, lane })
}

pub(super) fn send(shared: &Connections, to: usize, lane: Lane, data: &Tensor) -> Result<(), CommError> {
    let from = shared.rank;
    let Channel { slots, slot_bytes, .. } = channel(shared, from, to, lane)?;
    let element = ElementType::from_dtype(data.dtype());
    let element = element
        .ok_or_else(|| CommError::Request { operation: OperationKind::Send, what: format!("no {:?}", data.dtype()) })?;
    let length = data.elem_count() * data.dtype().size_in_bytes();
    if length > slot_bytes {
        return Err(CommError::TooLong { from, to, lane, bytes: length, slot_bytes });
    }
    shared.ensure_running(OperationKind::Send)?;
    let bytes = bytes::read(data, <[u8]>::to_vec)?;
    shared.wait_for(OperationKind::Send, FOREGROUND, to, |state| state.take_slot(to, lane, slots))?;
    // The frame is queued without waiting for space: the slots bound the queue.
    shared.post(to, FrameTag::Message { lane, element: element as u64 }, bytes);
    Ok(())
}

pub(super) fn receive(
    shared: &Connections,
    from: usize,
    lane: Lane,
    dtype: DType,
    shape: &[usize],
) -> Result<Tensor, CommError> {
    let to = shared.rank;
    channel(shared, from, to, lane)?;
    shared.ensure_running(OperationKind::Receive)?;
    let expected = (shape.iter().product::<usize>() * dtype.size_in_bytes()) as u64;
    // An unexpected message stays in its channel.
    let message = shared.wait_for(OperationKind::Receive, FOREGROUND, from, |state| {
        let next = state.message(from, lane)?;
        let (element, sent) = (ElementType::from_code(next.element), next.bytes.len() as u64);
        if element.dtype() != dtype || sent != expected {
            return Some(Err((element, sent)));
        }
        state.take_message(from, lane).map(Ok)
    })?;
    let message = message.map_err(|(element, sent)| CommError::Message {
        from,
        to,
        lane,
        sent,
        element,
        dtype,
        shape: shape.to_vec(),
        expected,
    })?;
    shared.post(from, FrameTag::SlotFreed { lane }, Vec::new());
    Ok(Tensor::from_raw_buffer(&message.bytes, dtype, shape, &Device::Cpu)?)
}
