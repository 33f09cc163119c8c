//! Tensors of any device, to be read on the host.

use candle_core::{Device, Result, Tensor};

/// Copies `tensor` to the host's memory, and waits until the copy is done: the driver need not wait for the end of a copy to memory
/// that is not pinned, though it does so on most machines.
///
/// # Errors
/// If a kernel before it failed.
pub fn on_host(tensor: &Tensor) -> Result<Tensor> {
    let host = tensor.to_device(&Device::Cpu)?;
    #[cfg(feature = "cuda")]
    if tensor.device().is_cuda() {
        crate::gpu::gpu_of(tensor)?.synchronize()?;
    }
    Ok(host)
}
