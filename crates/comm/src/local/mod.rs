//! Ranks of one machine, threads or processes, over one region of memory.
//!
//! The region is zeroes at first and consists of atomics and of plain bytes. Plain bytes have one owner at a time: who that
//! is follows from sequence numbers (`collective`, `channel`), which only ever grow and are each written by one rank.

mod bell;
mod board;
mod channel;
mod collective;
mod core;
mod endpoint;
mod layout;
mod region;
mod work;

#[cfg(test)]
mod tests_failures;
#[cfg(test)]
mod tests_processes;
#[cfg(test)]
mod tests_speed;

pub use board::{BACKGROUND, FOREGROUND, LINES};
pub use board::{BoardView, Phase, Seat};
pub use collective::Request;
pub use endpoint::LocalComm;
pub use endpoint::{buffers, sum_request};
pub use region::{Region, RegionError};
pub use work::Buffers;
