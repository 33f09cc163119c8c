//! Messages of channels, whatever the transport.

use candle_core::{DType, Device, Tensor};

use super::error::{CommError, ElementType};
use runner_spec::topology::Channel;

/// The tensor that a receiver expects as the next message of a channel.
pub struct ExpectedMessage<'a> {
    pub channel: Channel,
    pub dtype: DType,
    pub shape: &'a [usize],
}

impl ExpectedMessage<'_> {
    /// # Errors
    /// If a message of `bytes` bytes of `element` is another tensor.
    pub(crate) fn check(&self, element: ElementType, bytes: usize) -> Result<(), CommError> {
        let Self { channel: Channel { from, to, lane, slot_bytes, .. }, dtype, shape } = self;
        let expected = shape.iter().product::<usize>() * dtype.size_in_bytes();
        if element.dtype() == *dtype && bytes == expected && bytes <= *slot_bytes {
            return Ok(());
        }
        Err(CommError::Message(format!(
            "the next {lane} message from rank {from} to rank {to} has {bytes} bytes of {element}, but a tensor of shape \
             {shape:?} of {} ({expected} bytes) was expected",
            dtype.as_str()
        )))
    }

    /// The tensor whose bytes were received and checked.
    pub(crate) fn tensor(&self, bytes: &[u8]) -> Result<Tensor, CommError> {
        Ok(Tensor::from_raw_buffer(bytes, self.dtype, self.shape, &Device::Cpu)?)
    }
}
