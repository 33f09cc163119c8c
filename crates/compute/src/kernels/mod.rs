//! The arithmetic: functions on tensors, which choose the implementation for the tensors' device.
//!
//! Tensors are contiguous. Outputs are new tensors; a tensor that is updated in place is the first argument. Nothing in this module
//! knows layers or parameters.

#![allow(clippy::inline_always, reason = "see `cpu::simd::vectorize`")]

#[macro_use]
pub(crate) mod access;
pub mod attention;
mod attention_shape;
pub mod bytes;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod embedding;
mod gradient;
pub mod loss;
pub mod matmul;
pub mod muon;
pub mod norm;
pub mod optimizer;
pub mod out_of_memory;
pub mod pointwise;
pub mod storage;
pub mod weighted_sum;

pub use access::on_host;
pub use gradient::Gradient;
