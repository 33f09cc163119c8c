//! A zero-bubble schedule (after Qi et al. 2023, ZB-H1): the backward is split, only the input's gradient is passed on at
//! once, and the weights' gradients fill what would be the bubble.
//!
//! The order comes from a simulation in which forward, input and weight pass take one unit of time each. Every stage does the
//! first of these that it can: an input pass; a forward, while fewer than `stages` micro-batches are live on it (the most that
//! 1F1B keeps on any stage); a weight pass.

use super::pass::{Pass, ScheduledPass};

pub(super) fn schedule(stages: usize, micro_batches: usize) -> Vec<Vec<ScheduledPass>> {
    let max_live = stages.min(micro_batches);
    let mut progress: Vec<StageProgress> = (0..stages).map(|_| StageProgress::default()).collect();
    while progress.iter().any(|s| s.weights < micro_batches) {
        // Every stage sees the progress before this unit of time.
        let done: Vec<(usize, usize)> = progress.iter().map(|s| (s.forwards, s.inputs)).collect();
        for (index, stage) in progress.iter_mut().enumerate() {
            let arrived = if index == 0 { micro_batches } else { done[index - 1].0 };
            let returned = if index + 1 == stages { stage.forwards } else { done[index + 1].1.min(stage.forwards) };
            let (pass, mb) = if stage.inputs < returned {
                (Pass::BackwardInput, &mut stage.inputs)
            } else if stage.forwards < arrived && stage.forwards - stage.weights < max_live {
                (Pass::Forward, &mut stage.forwards)
            } else if stage.weights < stage.inputs {
                (Pass::BackwardWeight, &mut stage.weights)
            } else {
                continue;
            };
            stage.passes.push(ScheduledPass::new(pass, *mb, 0));
            *mb += 1;
        }
    }
    progress.into_iter().map(|s| s.passes).collect()
}

/// The passes that a stage has run. Micro-batches pass in order, so counts are enough.
#[derive(Default)]
struct StageProgress {
    forwards: usize,
    inputs: usize,
    weights: usize,
    passes: Vec<ScheduledPass>,
}
