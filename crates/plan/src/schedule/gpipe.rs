//! GPipe (Huang et al. 2019): all forwards, then all backwards. Every micro-batch's activations are alive in between.

use super::op::{Op, Work};

pub(super) fn schedule(stages: usize, microbatches: usize) -> Vec<Vec<Op>> {
    let pass = |work| (0..microbatches).map(move |mb| Op::new(work, mb, 0));
    (0..stages).map(|_| pass(Work::Forward).chain(pass(Work::Backward)).collect()).collect()
}
