//! NVIDIA GPUs: contexts, the embedded kernels, memory.
//!
//! A rank has one candle device, with one stream on which all its work runs in order. The module `kernels` chooses the
//! kernels; the crate `comm` exchanges tensors between ranks.

mod blaslt;
mod context;
mod memory;
mod timing;
mod upload;

pub use blaslt::{Epilogue, MatmulOperand, MatmulRequest};
pub(crate) use context::Kernel;
pub use context::{Gpu, gpu_of, open, opened_by_this_thread};
pub use memory::{DeviceMemory, address, address_of_rows, memory, reserve, reset_peak, total_memory};
pub use timing::GpuTimestamp;

use candle_core::cuda_backend::cudarc::driver::DriverError;

/// Converts a driver's error to candle's, in which out-of-memory errors are recognized.
pub(crate) fn driver_error(error: DriverError) -> candle_core::Error {
    candle_core::Error::Cuda(Box::new(error))
}
