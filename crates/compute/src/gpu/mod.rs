//! NVIDIA GPUs: contexts, the embedded kernels and their launches, memory.
//!
//! A rank has one candle device, with one stream on which all that it computes runs in order. Which kernel computes what is the
//! business of `kernels`; how ranks talk, that of `comm`.

mod blaslt;
mod context;
mod launch;
mod memory;
mod timing;
mod upload;

pub use blaslt::{Epilogue, Operand, Product};
pub use context::{Gpu, of, open, opened_here};
pub use launch::{Arg, Dims};
pub use memory::{DeviceMemory, address, address_or_null, memory, on_host, reset_peak, share_with_peers};
pub use timing::Moment;

use candle_core::cuda_backend::cudarc::driver::DriverError;

/// A driver's error as candle's, which out-of-memory errors are recognized by.
fn driver(error: DriverError) -> candle_core::Error {
    candle_core::Error::Cuda(Box::new(error))
}
