//! 1F1B (PipeDream-Flush, Narayanan et al. 2021): stage s runs stages − s − 1 forwards ahead, then alternates, so at most
//! stages − s micro-batches are alive on it. The bubble is GPipe's.

use super::op::{Op, Work};

pub(super) fn schedule(stages: usize, microbatches: usize) -> Vec<Vec<Op>> {
    (0..stages)
        .map(|stage| {
            let ahead = (stages - stage - 1).min(microbatches);
            let mut ops: Vec<Op> = (0..ahead).map(|mb| Op::new(Work::Forward, mb, 0)).collect();
            for mb in 0..microbatches {
                if mb + ahead < microbatches {
                    ops.push(Op::new(Work::Forward, mb + ahead, 0));
                }
                ops.push(Op::new(Work::Backward, mb, 0));
            }
            ops
        })
        .collect()
}
