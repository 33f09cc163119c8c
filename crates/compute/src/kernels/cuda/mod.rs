//! Launches of the kernels for NVIDIA GPUs, twins of `cpu`. Each takes tensors on one GPU, looks at their types and lengths, and
//! returns before the work is done: everything runs in the order of the device's stream.
//!
//! The tensors' type decides the arithmetic: bf16 tensors are read and written as such, with f32 in between.

#![allow(unsafe_code, reason = "the kernels' room: launches, whose arguments are looked at before")]

pub mod attention;
pub mod embedding;
mod launch;
pub mod loss;
pub mod matmul;
pub mod norm;
pub mod optimizer;
pub mod pointwise;
