//! Launches of the kernels for NVIDIA GPUs, twins of `cpu`. Each takes tensors on one GPU, checks their types and lengths, and
//! returns before the work is done: everything runs in the order of the device's stream.
//!
//! The tensors' type decides the arithmetic: bf16 tensors are read and written as such, with f32 in between.

#![allow(unsafe_code, reason = "launches of kernels, whose arguments are checked before")]

pub mod attention;
pub mod embedding;
mod launch;
pub mod loss;
pub mod matmul;
pub mod muon;
pub mod norm;
pub mod optimizer;
pub mod pointwise;
pub mod weighted_sum;
