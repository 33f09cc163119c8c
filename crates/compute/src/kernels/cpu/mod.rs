//! CPU kernels on slices, parallel over the current rayon pool.
//!
//! Sums are divided by size, never by the number of threads, and added up in a fixed order: any number of threads gives the same bits.
//! Kernels read and write numbers as tensors store them ([`Stored`]) and compute in [`Real`].

#![allow(unsafe_code, reason = "raw pointers where tasks write disjoint strided parts")]
#![allow(clippy::inline_always, reason = "a function that is not inlined loses the vector width chosen at run time")]

pub mod activation;
pub mod attention;
pub mod cross_entropy;
pub mod dropout;
pub mod element_update;
pub mod elementwise;
pub mod embedding;
pub mod gemm;
pub mod norm;
pub mod pieces;
pub mod product;
pub mod real;
pub mod rope;
pub mod simd;
mod stored;
pub mod weighted_sum;

pub use real::Real;
pub use stored::Stored;
