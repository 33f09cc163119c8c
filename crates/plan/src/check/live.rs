//! How many micro-batches hold activations at the moment when they hold the most.

use crate::cost;
use runner_spec::experiment::Recompute;
use runner_spec::program::{Blocks, Program};

/// Micro-batches of a chunk that hold activations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Live {
    /// Those whose backward has not begun.
    pub saved: usize,
    /// Those of which only the weights' gradients are left to do.
    pub work: usize,
}

/// What a micro-batch holds on one chunk in either state, relative to others: elements per position.
#[derive(Debug, Clone, Copy)]
struct Held {
    saved: usize,
    work: usize,
}

impl Held {
    fn of(program: &Program, chunk: Blocks) -> Self {
        let spec = &program.model;
        // Without recomputation, what weight work keeps is as much as was saved: micro-batches are counted.
        if program.recompute == Recompute::None {
            return Self { saved: 1, work: 1 };
        }
        let sum = |buffers: &[cost::Buffer]| buffers.iter().map(|b| b.per_position).sum::<usize>();
        let layers = chunk.range().filter(|&b| b > 0 && b <= spec.layers).count();
        let head = if chunk.contains(spec.layers + 1) { sum(&cost::head_saved(spec)) } else { 0 };
        Self {
            saved: layers * sum(&cost::layer_kept(spec, program.recompute)) + head,
            work: layers * sum(&cost::layer_work(spec)) + head,
        }
    }
}

/// What is alive while a program is walked, and the most that ever was; per chunk.
#[derive(Debug)]
pub(super) struct Peak {
    held: Vec<Held>,
    now: Vec<Live>,
    most: Vec<Live>,
}

impl Peak {
    pub(super) fn new(program: &Program) -> Self {
        let none = vec![Live::default(); program.chunks.len()];
        let held = program.chunks.iter().map(|chunk| Held::of(program, *chunk)).collect();
        Self { held, now: none.clone(), most: none }
    }

    /// A micro-batch went forward.
    pub(super) fn forward(&mut self, chunk: usize) {
        self.now[chunk].saved += 1;
        self.weigh();
    }

    /// The gradients of a micro-batch's input are done, those of the weights are not.
    pub(super) fn input(&mut self, chunk: usize) {
        let live = &mut self.now[chunk];
        (live.saved, live.work) = (live.saved.saturating_sub(1), live.work + 1);
        self.weigh();
    }

    /// A micro-batch is through; `split`: after `input`.
    pub(super) fn backward(&mut self, chunk: usize, split: bool) {
        let live = &mut self.now[chunk];
        let left = if split { &mut live.work } else { &mut live.saved };
        *left = left.saturating_sub(1);
    }

    pub(super) fn most(self) -> Vec<Live> {
        self.most
    }

    fn weigh(&mut self) {
        let all = |live: &[Live]| -> usize {
            live.iter().zip(&self.held).map(|(l, h)| l.saved * h.saved + l.work * h.work).sum()
        };
        if all(&self.now) > all(&self.most) {
            self.most.clone_from(&self.now);
        }
    }
}
