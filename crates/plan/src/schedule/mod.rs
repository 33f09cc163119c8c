//! Pipeline schedules: pure functions from stages, chunks and micro-batches to the passes of each stage, in order.

mod pass;
mod zero_bubble;

#[cfg(test)]
mod tests;

pub use pass::{Pass, ScheduledPass};

pub(crate) mod interleaving;

use runner_spec::experiment::PipelineSchedule;

/// The passes of each stage, in order. `chunks` is 1 except for `Interleaved`, which needs `micro_batches` to be a multiple of
/// `stages`.
///
/// - GPipe (Huang et al. 2019): all forwards, then all backwards. The activations of every micro-batch are live in between.
/// - 1F1B (PipeDream-Flush, Narayanan et al. 2021): stage s runs stages − s − 1 forwards ahead and then alternates, so that at
///   most stages − s micro-batches are live on it. The bubble is as large as GPipe's.
/// - Interleaved 1F1B (Narayanan et al. 2021): each stage holds several chunks of the model, so the pipeline fills in steps of one
///   chunk, and the bubble shrinks by the number of chunks.
/// - Zero bubble (after Qi et al. 2023): see the module `zero_bubble`.
pub fn schedule(
    schedule: PipelineSchedule,
    stages: usize,
    chunks: usize,
    micro_batches: usize,
) -> Vec<Vec<ScheduledPass>> {
    let ahead = |stage: usize| match schedule {
        PipelineSchedule::Gpipe => micro_batches,
        PipelineSchedule::OneFOneB => stages - stage - 1,
        PipelineSchedule::Interleaved => (stages - stage - 1) * 2 + (chunks - 1) * group_size(stages, micro_batches),
        PipelineSchedule::ZeroBubble => 0,
    };
    match schedule {
        PipelineSchedule::ZeroBubble => zero_bubble::schedule(stages, micro_batches),
        _ => (0..stages).map(|stage| forwards_ahead(ahead(stage), stages, chunks, micro_batches)).collect(),
    }
}

/// One stage: `ahead` forwards first, then a forward and a backward in turn, then the remaining backwards. Micro-batches pass in
/// groups: each group passes through all chunks, forwards from the first chunk and backwards from the last.
fn forwards_ahead(ahead: usize, stages: usize, chunks: usize, micro_batches: usize) -> Vec<ScheduledPass> {
    let total = micro_batches * chunks;
    let size = group_size(stages, micro_batches);
    let nth = |pass: Pass, n: usize| {
        let (group, within) = (n / (size * chunks), n % (size * chunks));
        let chunk = if pass == Pass::Forward { within / size } else { chunks - 1 - within / size };
        ScheduledPass::new(pass, group * size + within % size, chunk)
    };
    let mut passes: Vec<ScheduledPass> = (0..ahead.min(total)).map(|n| nth(Pass::Forward, n)).collect();
    for n in 0..total {
        if n + ahead < total {
            passes.push(nth(Pass::Forward, n + ahead));
        }
        passes.push(nth(Pass::Backward, n));
    }
    passes
}

/// Micro-batches of a group: `micro_batches` are split into as many equal groups of at least `stages` as possible. With one
/// chunk, groups change nothing. (An experiment takes multiples of `stages` only.)
fn group_size(stages: usize, micro_batches: usize) -> usize {
    let groups = (micro_batches / stages).max(1);
    micro_batches / groups
}
