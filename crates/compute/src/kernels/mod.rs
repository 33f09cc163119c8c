//! The arithmetic: functions on tensors, the place where a device's implementation is chosen.
//!
//! Tensors are contiguous. Outputs are new tensors; what is updated in place is the first argument. Nothing here knows of
//! layers or parameters.

#![allow(clippy::inline_always, reason = "see `cpu::simd::vectorize`")]

#[macro_use]
mod access;
pub mod attention;
pub mod bytes;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod embedding;
mod host;
pub mod loss;
pub mod matmul;
pub mod norm;
pub mod optimizer;
pub mod out_of_memory;
pub mod pointwise;

pub use access::Math;
pub use host::on_host;
