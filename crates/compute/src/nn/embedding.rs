//! Token embedding, positions where the model adds them, dropout.

use candle_core::{Result, Tensor};

use super::{BackwardPass, Carried, DropoutSite, ForwardPass, Norm, Sums, WeightGradientTask};
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
    /// The norm of the sum of both.
    pub norm: Option<Norm>,
    /// What follows the norm.
    pub sums: Sums,
    /// The tables whose rows layers read: their places among the carried tensors, and their parameters.
    pub tables: Vec<(usize, usize)>,
    pub dropout: DropoutSite,
}

impl Embedding {
    /// Returns `[batch·seq, d_model]`. Token 0 of each row is at position `start`.
    pub fn forward(&self, pass: ForwardPass<'_>, start: usize) -> Result<Tensor> {
        let x = self.sums.forward(pass, self.normed(pass, start)?, None)?.0;
        self.dropout.apply(&x, pass.mb)?;
        Ok(x)
    }

    /// The tables' rows of each token, for the layers that read them.
    pub fn table_rows(&self, pass: ForwardPass<'_>) -> Result<Carried> {
        let ForwardPass { params, mb, .. } = pass;
        let rows = |parameter| embedding::embed(&mb.ids, &params.parameter(parameter)?, None, None, mb.seq, 0);
        self.tables.iter().map(|&(place, parameter)| Ok((place, rows(parameter)?))).collect()
    }

    fn normed(&self, pass: ForwardPass<'_>, start: usize) -> Result<Tensor> {
        let x = self.rows(pass, start)?;
        match &self.norm {
            Some(norm) => Ok(norm.forward(pass, &x)?.0),
            None => Ok(x),
        }
    }

    /// The sum of the tables' rows.
    fn rows(&self, ForwardPass { params, mb, .. }: ForwardPass<'_>, start: usize) -> Result<Tensor> {
        let positions = match &self.positions {
            Positions::None => None,
            Positions::Learned(p) => Some(params.parameter(*p)?),
            Positions::Fixed(table) => Some(table.clone()),
        };
        let table = params.parameter(self.tokens)?;
        embedding::embed(&mb.ids, &table, self.scale, positions.as_ref(), mb.seq, start)
    }

    /// Apart from the norm and the sums, whose inputs are computed again, the backward is weight-gradient tasks. They keep the gradients of the
    /// tables' rows.
    pub fn backward(&self, pass: &mut BackwardPass<'_>, dy: &Gradient) -> Result<()> {
        let (mb, mut dy) = (pass.mb, self.dropout.backward(dy, pass.mb)?.tensor);
        if !self.sums.is_empty() {
            let inputs = self.sums.forward(pass.forward(), self.normed(pass.forward(), 0)?, None)?.1;
            dy = self.sums.backward(pass, inputs, None, dy)?.0;
        }
        for (place, parameter) in &self.tables {
            let (parameter, ids) = (*parameter, mb.ids.clone());
            let rows = pass.carried_gradients.iter().position(|(of, _)| of == place);
            if let Some((_, dy)) = rows.map(|index| pass.carried_gradients.remove(index)) {
                pass.grads.accept(WeightGradientTask::Table { parameter, ids, dy })?;
            }
        }
        if let Some(norm) = &self.norm {
            let x = self.rows(pass.forward(), 0)?;
            let (_, stats) = norm.forward(pass.forward(), &x)?;
            dy = norm.backward(pass, &x, &stats, &dy, None)?.tensor;
        }
        pass.grads.accept(WeightGradientTask::Embedding { layer: self.clone(), ids: mb.ids.clone(), seq: mb.seq, dy })
    }

    /// Adds weight gradients of rows of `seq` tokens, given the gradient of the tables' rows.
    pub fn backward_weight(&self, grads: &Params, ids: &Tensor, seq: usize, dy: &Tensor) -> Result<()> {
        if let Positions::Learned(p) = self.positions {
            grads.accumulate(p, 1, |dpositions| embedding::position_backward(dpositions, seq, dy))?;
        }
        grads.accumulate(self.tokens, 1, |dtable| embedding::embed_backward(dtable, ids, self.scale, dy))
    }
}
