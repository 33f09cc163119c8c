//! Ranks of one machine, as threads or processes, over one region of shared memory.
//!
//! The region starts as zeroes and consists of atomics and of plain bytes. Plain bytes have one owner at a time. The owner
//! follows from sequence numbers (`collective`, `endpoint`), which only ever grow and are each written by one rank.

mod collective;
mod endpoint;
mod layout;
mod local_rank;
mod piece_steps;
mod region;
#[cfg(test)]
mod tests;

pub use endpoint::LocalComm;
pub use region::Region;
