//! Token embedding, positions where the model adds them, dropout.

use candle_core::{Result, Tensor};

use super::{BackwardPass, DropoutSite, ForwardPass, WeightGradientTask};
use crate::kernels::Gradient;
use crate::kernels::embedding;
use crate::nn::Params;

/// The positions that are added to tokens' embeddings.
#[derive(Debug, Clone)]
pub enum Positions {
    None,
    /// The rows of a parameter, given by its index.
    Learned(usize),
    /// The rows of a table that is not trained, `[positions, d_model]`.
    Fixed(Tensor),
}

/// The first block of a model.
#[derive(Debug, Clone)]
pub struct Embedding {
    /// Index of the table's parameter.
    pub tokens: usize,
    /// Factor on tokens' embeddings before positions are added.
    pub scale: Option<f64>,
    pub positions: Positions,
    pub dropout: DropoutSite,
}

impl Embedding {
    /// Returns `[batch·seq, d_model]`. Token 0 of each row is at position `start`.
    pub fn forward(&self, ForwardPass { params, mb }: ForwardPass<'_>, start: usize) -> Result<Tensor> {
        let positions = match &self.positions {
            Positions::None => None,
            Positions::Learned(p) => Some(params.parameter(*p)?),
            Positions::Fixed(table) => Some(table.clone()),
        };
        let table = params.parameter(self.tokens)?;
        let x = embedding::embed(&mb.ids, &table, self.scale, positions.as_ref(), mb.seq, start)?;
        self.dropout.apply(&x, mb)?;
        Ok(x)
    }

    /// The whole backward is one weight-gradient task, which keeps the gradient before the dropout mask.
    pub fn backward(&self, pass: &mut BackwardPass<'_>, dy: &Gradient) -> Result<()> {
        let (mb, dy) = (pass.mb, self.dropout.backward(dy, pass.mb)?.tensor);
        pass.grads.accept(WeightGradientTask::Embedding { layer: self.clone(), ids: mb.ids.clone(), seq: mb.seq, dy })
    }

    /// Adds weight gradients of rows of `seq` tokens, given the gradient before the dropout mask.
    pub fn backward_weight(&self, grads: &Params, ids: &Tensor, seq: usize, dy: &Tensor) -> Result<()> {
        if let Positions::Learned(p) = self.positions {
            grads.accumulate(p, 1, |dpositions| embedding::position_backward(dpositions, seq, dy))?;
        }
        grads.accumulate(self.tokens, 1, |dtable| embedding::embed_backward(dtable, ids, self.scale, dy))
    }
}
