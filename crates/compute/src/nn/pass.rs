//! The tensors that every layer of a pass works with.

use super::{Carried, GradientSink, MicroBatch};
use crate::nn::Params;

/// A forward pass of one micro-batch.
#[derive(Debug, Clone, Copy)]
pub struct ForwardPass<'a> {
    pub params: &'a Params,
    pub mb: &'a MicroBatch,
    /// The carried tensors that the block reads.
    pub carried: &'a Carried,
}

/// No carried tensors.
static NOTHING: Carried = Vec::new();

impl<'a> ForwardPass<'a> {
    /// A pass of a model without carried tensors.
    pub fn new(params: &'a Params, mb: &'a MicroBatch) -> Self {
        Self { params, mb, carried: &NOTHING }
    }
}

/// A backward pass of one micro-batch.
#[derive(Debug)]
pub struct BackwardPass<'a> {
    pub params: &'a Params,
    pub mb: &'a MicroBatch,
    /// Receives the weight gradients.
    pub grads: GradientSink<'a>,
    /// The carried tensors that the block read.
    pub carried: Carried,
    /// Their gradients so far.
    pub carried_gradients: Carried,
}

impl<'a> BackwardPass<'a> {
    /// A pass of a model without carried tensors.
    pub fn new(params: &'a Params, mb: &'a MicroBatch, grads: GradientSink<'a>) -> Self {
        Self { params, mb, grads, carried: Vec::new(), carried_gradients: Vec::new() }
    }

    /// The pass that computes activations again.
    pub(super) fn forward(&self) -> ForwardPass<'_> {
        ForwardPass { params: self.params, mb: self.mb, carried: &self.carried }
    }
}
