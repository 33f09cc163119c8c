//! Counts the micro-batches that hold activations at the moment when they hold the most.

use crate::schedule::{Pass, ScheduledPass};
use runner_spec::experiment::Recompute;
use runner_spec::model::parts::Buffer;
use runner_spec::program::{BlockRange, Program};

/// Micro-batches of one chunk that hold activations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LiveMicroBatches {
    /// Micro-batches whose backward has not started.
    pub saved: usize,
    /// Micro-batches that still need the gradients of the weights only.
    pub work: usize,
}

/// Elements per position that one micro-batch holds on one chunk in either state, relative to other chunks.
#[derive(Debug, Clone, Copy)]
struct HeldElements {
    saved: usize,
    work: usize,
}

impl HeldElements {
    fn of_chunk(program: &Program, chunk: BlockRange) -> Self {
        let (spec, decoder) = (&program.model, program.model.decoder());
        // Without recomputation, the weights' work keeps as much as was saved: micro-batches are counted.
        if program.recompute == Recompute::None {
            return Self { saved: 1, work: 1 };
        }
        let sum = |buffers: &[Buffer]| buffers.iter().map(|b| b.per_position).sum::<usize>();
        let head = if chunk.contains(spec.layers + 1) { sum(&decoder.head.kept()) } else { 0 };
        let mut held = Self { saved: head, work: head };
        for (layer, times) in decoder.layers.count_in(chunk.range()) {
            held.saved += times * sum(&layer.kept(program.recompute));
            held.work += times * sum(&layer.deferred());
        }
        held
    }
}

/// The live micro-batches per chunk of the rank of `program`, whose stage runs `passes`: what its execution counts.
pub(crate) fn live_during_passes(program: &Program, passes: &[ScheduledPass]) -> Vec<LiveMicroBatches> {
    let mut live = LivePeak::new(program);
    for pass in passes {
        match pass.pass {
            Pass::Forward => live.add_forward(pass.chunk),
            Pass::BackwardInput => live.move_to_weight_work(pass.chunk),
            Pass::Backward => live.complete_backward(pass.chunk, false),
            Pass::BackwardWeight => live.complete_backward(pass.chunk, true),
        }
    }
    live.peak
}

/// The live micro-batches per chunk while a program is executed, now and at the peak.
#[derive(Debug)]
pub(super) struct LivePeak {
    held: Vec<HeldElements>,
    now: Vec<LiveMicroBatches>,
    pub(super) peak: Vec<LiveMicroBatches>,
}

impl LivePeak {
    pub(super) fn new(program: &Program) -> Self {
        let none = vec![LiveMicroBatches::default(); program.chunks.len()];
        let held = program.chunks.iter().map(|chunk| HeldElements::of_chunk(program, *chunk)).collect();
        Self { held, now: none.clone(), peak: none }
    }

    /// A micro-batch ran forward.
    pub(super) fn add_forward(&mut self, chunk: usize) {
        self.now[chunk].saved += 1;
        self.update_peak();
    }

    /// The gradients of a micro-batch's input are done, those of the weights are not.
    pub(super) fn move_to_weight_work(&mut self, chunk: usize) {
        let live = &mut self.now[chunk];
        (live.saved, live.work) = (live.saved.saturating_sub(1), live.work + 1);
        self.update_peak();
    }

    /// The backward of a micro-batch is complete. If it `is_split`, its input part came before.
    pub(super) fn complete_backward(&mut self, chunk: usize, is_split: bool) {
        let live = &mut self.now[chunk];
        let left = if is_split { &mut live.work } else { &mut live.saved };
        *left = left.saturating_sub(1);
    }

    fn update_peak(&mut self) {
        let elements = |live: &[LiveMicroBatches]| -> usize {
            live.iter().zip(&self.held).map(|(l, h)| l.saved * h.saved + l.work * h.work).sum()
        };
        if elements(&self.now) > elements(&self.peak) {
            self.peak.clone_from(&self.now);
        }
    }
}
