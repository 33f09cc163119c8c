//! The tensors that every layer of a pass works with.

use super::{GradientSink, MicroBatch};
use crate::nn::Params;

/// A forward pass of one micro-batch.
#[derive(Debug, Clone, Copy)]
pub struct ForwardPass<'a> {
    pub params: &'a Params,
    pub mb: &'a MicroBatch,
}

/// A backward pass of one micro-batch.
#[derive(Debug)]
pub struct BackwardPass<'a> {
    pub params: &'a Params,
    pub mb: &'a MicroBatch,
    /// Receives the weight gradients.
    pub grads: GradientSink<'a>,
}

impl<'a> BackwardPass<'a> {
    /// The pass that computes activations again.
    pub(super) fn forward(&self) -> ForwardPass<'a> {
        ForwardPass { params: self.params, mb: self.mb }
    }
}
