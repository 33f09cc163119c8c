//! Interleaved 1F1B (Narayanan et al. 2021): each rank holds several chunks of the model, so the pipeline fills in steps of
//! a chunk, and the bubble shrinks by their number. Micro-batches go through in groups of `stages`, chunk after chunk.

use super::op::{Op, Work};

pub(super) fn schedule(stages: usize, chunks: usize, microbatches: usize) -> Vec<Vec<Op>> {
    let total = microbatches * chunks;
    // The k-th forward of a rank: groups of `stages` micro-batches, each group through every chunk.
    let nth = |work: Work, k: usize| {
        let (group, within) = (k / (stages * chunks), k % (stages * chunks));
        let chunk = within / stages;
        let chunk = if work == Work::Forward { chunk } else { chunks - 1 - chunk };
        Op::new(work, group * stages + within % stages, chunk)
    };
    (0..stages)
        .map(|stage| {
            let ahead = ((stages - stage - 1) * 2 + (chunks - 1) * stages).min(total);
            let mut ops: Vec<Op> = (0..ahead).map(|k| nth(Work::Forward, k)).collect();
            for k in 0..total {
                if k + ahead < total {
                    ops.push(nth(Work::Forward, k + ahead));
                }
                ops.push(nth(Work::Backward, k));
            }
            ops
        })
        .collect()
}
