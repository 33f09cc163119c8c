//! Interleaved 1F1B (Narayanan et al. 2021): each rank holds several chunks of the model, so the pipeline fills in steps of
//! a chunk, and the bubble shrinks by their number. Micro-batches go through in groups, chunk after chunk: as many groups of
//! equal size as can be made with at least `stages` in each, so that their number may be other than a multiple of `stages`.

use super::op::{Op, Work};

pub(super) fn schedule(stages: usize, chunks: usize, microbatches: usize) -> Vec<Vec<Op>> {
    let total = microbatches * chunks;
    let size = group(stages, microbatches);
    // The k-th forward of a rank: each group goes through every chunk.
    let nth = |work: Work, k: usize| {
        let (group, within) = (k / (size * chunks), k % (size * chunks));
        let chunk = within / size;
        let chunk = if work == Work::Forward { chunk } else { chunks - 1 - chunk };
        Op::new(work, group * size + within % size, chunk)
    };
    (0..stages)
        .map(|stage| {
            let ahead = ((stages - stage - 1) * 2 + (chunks - 1) * size).min(total);
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

/// Micro-batches of a group: their number is to be a multiple of it. (An experiment takes multiples of `stages` only.)
fn group(stages: usize, microbatches: usize) -> usize {
    microbatches / (microbatches / stages).max(1)
}
