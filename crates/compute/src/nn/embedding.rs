//! Token embedding, positions where the model adds them, dropout.

use candle_core::{Result, Tensor};

use super::{Dropouts, GradSink, MicroBatch};
use crate::kernels::embedding;
use crate::model::Params;

/// What is added to a token's embedding.
#[derive(Debug, Clone)]
pub enum Positions {
    None,
    /// The rows of a parameter, given by its index.
    Learned(usize),
    /// The rows of a table that nobody trains, [positions, d_model].
    Fixed(Tensor),
}

/// The first block of a model.
#[derive(Debug, Clone)]
pub struct Embedding {
    /// The parameter's index.
    pub tokens: usize,
    /// What tokens' embeddings are multiplied by, before positions are added.
    pub scale: Option<f64>,
    pub positions: Positions,
    pub dropout: Dropouts,
}

impl Embedding {
    /// Returns [batch·seq, d_model]. Token 0 of each row is at position `start`.
    pub fn forward(&self, params: &Params, mb: &MicroBatch, start: usize) -> Result<Tensor> {
        let positions = match &self.positions {
            Positions::None => None,
            Positions::Learned(p) => Some(params.view(*p)?),
            Positions::Fixed(table) => Some(table.clone()),
        };
        let table = params.view(self.tokens)?;
        let x = embedding::embed(&mb.ids, &table, self.scale, positions.as_ref(), mb.seq, start, mb.math)?;
        self.dropout.apply(&x, mb)?;
        Ok(x)
    }

    /// All of it is weight work, which keeps `dy` behind the dropout mask.
    pub fn backward(&self, grads: &mut GradSink<'_>, dy: &Tensor, mb: &MicroBatch) -> Result<()> {
        grads.embedding(self, self.dropout.backward(dy, mb)?, mb)
    }

    /// Adds weight gradients, given the gradient behind the dropout mask.
    pub fn backward_weight(&self, grads: &Params, dy: &Tensor, mb: &MicroBatch) -> Result<()> {
        if let Positions::Learned(p) = self.positions {
            embedding::position_backward(&grads.view(p)?, mb.seq, dy)?;
        }
        embedding::embed_backward(&grads.view(self.tokens)?, &mb.ids, self.scale, dy)
    }
}
