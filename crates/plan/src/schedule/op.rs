//! One entry of a schedule, and the choice among schedules.

use super::{gpipe, interleaved, one_f_one_b, zero_bubble};
use runner_spec::experiment::PipelineSchedule;

/// What is computed for one micro-batch on one chunk of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    Forward,
    /// Both gradients: of the input and of the weights.
    Backward,
    Input,
    Weight,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Op {
    pub work: Work,
    pub mb: usize,
    pub chunk: usize,
}

impl Op {
    #[must_use]
    pub fn new(work: Work, mb: usize, chunk: usize) -> Self {
        Self { work, mb, chunk }
    }
}

/// The order of work of each stage. `chunks` is 1 except for `Interleaved`, which needs `microbatches` to be a multiple
/// of `stages`.
#[must_use]
pub fn schedule(kind: PipelineSchedule, stages: usize, chunks: usize, microbatches: usize) -> Vec<Vec<Op>> {
    match kind {
        PipelineSchedule::Gpipe => gpipe::schedule(stages, microbatches),
        PipelineSchedule::OneFOneB => one_f_one_b::schedule(stages, microbatches),
        PipelineSchedule::Interleaved => interleaved::schedule(stages, chunks, microbatches),
        PipelineSchedule::ZeroBubble => zero_bubble::schedule(stages, microbatches),
    }
}

/// The most (micro-batch, chunk) pairs whose activations are alive at once: from the forward to the end of the backward.
#[must_use]
pub fn peak_live(ops: &[Op]) -> usize {
    let (mut live, mut peak) = (0_usize, 0);
    for op in ops {
        match op.work {
            Work::Forward => live += 1,
            Work::Backward | Work::Weight => live = live.saturating_sub(1),
            Work::Input => {}
        }
        peak = peak.max(live);
    }
    peak
}
