//! Tensors of any device, to be read on the host.

use candle_core::{Device, Result, Tensor};

/// `tensor` in the host's memory: what it is computed from is done when this returns.
///
/// # Errors
/// That of a kernel before.
pub fn on_host(tensor: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if tensor.device().is_cuda() {
        return crate::gpu::on_host(tensor);
    }
    tensor.to_device(&Device::Cpu)
}
