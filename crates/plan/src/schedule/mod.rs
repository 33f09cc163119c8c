//! Pipeline schedules: pure functions from (stages, chunks, micro-batches) to what each rank computes, in order.

mod gpipe;
mod interleaved;
mod one_f_one_b;
mod op;
mod zero_bubble;

#[cfg(test)]
mod tests;

pub use op::{Op, Work, peak_live, schedule};
