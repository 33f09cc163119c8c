//! Final norm, projection to the vocabulary, cross-entropy.

use candle_core::{Result, Tensor, bail};

use super::{GradSink, Linear, MicroBatch, Norm};
use crate::kernels::loss::{self, IGNORE};
use crate::kernels::{Math, embedding};
use crate::model::Params;

/// Rows of logits held at a time where no gradient is needed.
const ROWS: usize = 256;

/// The last block of a model.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    pub norm: Norm,
    /// The embedding's own matrix where embeddings are tied.
    pub project: Linear,
}

/// What the backward needs; the one [rows, vocab] buffer already holds the logits' gradient.
#[derive(Debug)]
pub struct Saved {
    x: Tensor,
    stats: Tensor,
    normed: Tensor,
    dlogits: Tensor,
}

impl Head {
    /// `x`: [batch·seq, d_model]. Returns the loss of each token, in nats, 0 where ignored.
    pub fn forward(&self, params: &Params, x: Tensor, mb: &MicroBatch) -> Result<(Vec<f32>, Saved)> {
        let (normed, stats) = self.norm.forward(params, &x, mb.math)?;
        let logits = self.project.forward(params, &normed, mb.math)?;
        let losses = loss::cross_entropy(&logits, &mb.targets, Some(mb.scale), mb.math)?;
        Ok((losses, Saved { x, stats, normed, dlogits: logits }))
    }

    /// Returns dL/dx for L = scale · Σ losses. Weight work keeps the projection's input and the logits' gradient, [rows,
    /// vocab].
    pub fn backward(&self, params: &Params, grads: &mut GradSink<'_>, saved: Saved, math: Math) -> Result<Tensor> {
        let Saved { x, stats, normed, dlogits } = saved;
        let dnormed = self.project.backward(params, grads, &normed, &dlogits, math)?;
        drop((normed, dlogits));
        self.norm.backward(params, grads, &x, &stats, &dnormed, None, math)
    }

    /// Losses without a backward: logits only of rows that have a target, a few rows at a time.
    pub fn losses(&self, params: &Params, x: &Tensor, mb: &MicroBatch) -> Result<Vec<f32>> {
        if mb.targets.len() != x.dims2()?.0 {
            bail!("{} targets for {} tokens", mb.targets.len(), x.dims2()?.0)
        }
        let wanted: Vec<usize> = (0..mb.targets.len()).filter(|&r| mb.targets[r] != IGNORE).collect();
        let mut losses = vec![0.0; mb.targets.len()];
        for rows in wanted.chunks(ROWS) {
            let logits = self.logits(params, x, rows, mb.math)?;
            let targets: Vec<u32> = rows.iter().map(|&r| mb.targets[r]).collect();
            for (&row, loss) in rows.iter().zip(loss::cross_entropy(&logits, &targets, None, mb.math)?) {
                losses[row] = loss;
            }
        }
        Ok(losses)
    }

    /// Logits of rows `rows` of `x`, [rows.len(), vocab].
    pub fn logits(&self, params: &Params, x: &Tensor, rows: &[usize], math: Math) -> Result<Tensor> {
        let (normed, _) = self.norm.forward(params, &embedding::take_rows(x, rows)?, math)?;
        self.project.forward(params, &normed, math)
    }
}
