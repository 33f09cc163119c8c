//! Token embedding, learned positions where the model has them, dropout.

use candle_core::{Result, Tensor};

use super::{Dropouts, GradSink, MicroBatch};
use crate::kernels::embedding;
use crate::model::Params;

/// The first block of a model; fields are parameter indexes.
#[derive(Debug, Clone, Copy)]
pub struct Embedding {
    pub tokens: usize,
    pub positions: Option<usize>,
    pub dropout: Dropouts,
}

impl Embedding {
    /// Returns [batch·seq, d_model]. Token 0 of each row is at position `start`.
    pub fn forward(&self, params: &Params, mb: &MicroBatch, start: usize) -> Result<Tensor> {
        let positions = self.positions.map(|p| params.view(p)).transpose()?;
        let table = params.view(self.tokens)?;
        let x = embedding::embed(&mb.ids, &table, positions.as_ref(), mb.seq, start, mb.math)?;
        self.dropout.apply(&x, mb)?;
        Ok(x)
    }

    /// All of it is weight work, which keeps `dy` behind the dropout mask.
    pub fn backward(&self, grads: &mut GradSink<'_>, dy: &Tensor, mb: &MicroBatch) -> Result<()> {
        grads.embedding(*self, self.dropout.backward(dy, mb)?, mb)
    }

    /// Adds weight gradients, given the gradient behind the dropout mask.
    pub fn backward_weight(&self, grads: &Params, dy: &Tensor, mb: &MicroBatch) -> Result<()> {
        if let Some(p) = self.positions {
            embedding::position_backward(&grads.view(p)?, mb.seq, dy)?;
        }
        embedding::embed_backward(&grads.view(self.tokens)?, &mb.ids, dy)
    }
}
