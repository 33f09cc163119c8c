//! The passes of a pipeline.

/// The kind of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pass {
    Forward,
    /// The gradients of the input and of the weights.
    Backward,
    BackwardInput,
    BackwardWeight,
}

/// One pass of the micro-batch `mb` through the chunk `chunk` of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScheduledPass {
    pub pass: Pass,
    pub mb: usize,
    pub chunk: usize,
}

impl ScheduledPass {
    pub fn new(pass: Pass, mb: usize, chunk: usize) -> Self {
        Self { pass, mb, chunk }
    }
}
