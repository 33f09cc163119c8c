//! A zero-bubble schedule (after Qi et al. 2023, ZB-H1): the backward is split, only the input's gradient is passed on at
//! once, and the weights' gradients fill what would be the bubble.
//!
//! The order is what comes out of a simulation in which forward, input and weight pass take one unit each, and every stage
//! does the first of these that it can: an input pass; a forward, while fewer than `stages` micro-batches are alive on it
//! (the most that 1F1B keeps on any stage); a weight pass.

use super::op::{Op, Work};

pub(super) fn schedule(stages: usize, microbatches: usize) -> Vec<Vec<Op>> {
    let cap = stages.min(microbatches);
    let mut all: Vec<Stage> = (0..stages).map(|_| Stage::default()).collect();
    while all.iter().any(|s| s.weights < microbatches) {
        // What every stage sees is the state before this unit of time.
        let done: Vec<(usize, usize)> = all.iter().map(|s| (s.forwards, s.inputs)).collect();
        for (index, stage) in all.iter_mut().enumerate() {
            let arrived = if index == 0 { microbatches } else { done[index - 1].0 };
            let returned = if index + 1 == stages { stage.forwards } else { done[index + 1].1.min(stage.forwards) };
            if stage.inputs < returned {
                stage.ops.push(Op::new(Work::Input, stage.inputs, 0));
                stage.inputs += 1;
            } else if stage.forwards < arrived && stage.forwards - stage.weights < cap {
                stage.ops.push(Op::new(Work::Forward, stage.forwards, 0));
                stage.forwards += 1;
            } else if stage.weights < stage.inputs {
                stage.ops.push(Op::new(Work::Weight, stage.weights, 0));
                stage.weights += 1;
            }
        }
    }
    all.into_iter().map(|s| s.ops).collect()
}

/// What a stage has done: micro-batches go through in order, so counts say it all.
#[derive(Default)]
struct Stage {
    forwards: usize,
    inputs: usize,
    weights: usize,
    ops: Vec<Op>,
}
