//! Final norm, projection to the vocabulary, cross-entropy.

use candle_core::{Result, Tensor, bail};

use super::{BackwardPass, ForwardPass, Linear, Norm, SumInputs, Sums};
use crate::kernels::Gradient;
use crate::kernels::embedding;
use crate::kernels::loss::{self, LossOptions, Losses};
use crate::kernels::pointwise;
use runner_spec::data::IGNORED_TARGET;

/// Rows of logits that a CPU and a GPU hold at a time where no gradient is needed.
pub(crate) const LOGIT_ROWS: [usize; 2] = [256, 2048];

/// The last block of a model.
#[derive(Debug, Clone)]
pub struct Head {
    /// What precedes the norm.
    pub sums: Sums,
    /// The norm before the projection, where the model has one.
    pub norm: Option<Norm>,
    /// Its weight is the embedding's own matrix where embeddings are tied.
    pub project: Linear,
    pub loss: LossOptions,
}

/// The activations that the head's backward needs. The only `[rows, vocab]` buffer already holds the logits' gradient.
#[derive(Debug)]
pub struct HeadActivations {
    pub(crate) before_sums: SumInputs,
    /// Input and statistics of the norm.
    pub(crate) norm: Option<(Tensor, Tensor)>,
    /// Input of the projection.
    pub(crate) normed: Tensor,
    pub(crate) dlogits: Tensor,
}

impl Head {
    /// `x`: `[batch·seq, d_model]`. Returns the loss of each token.
    pub fn forward(&self, pass: ForwardPass<'_>, x: Tensor) -> Result<(Losses, HeadActivations)> {
        let (x, before_sums) = self.sums.forward(pass, x, None)?;
        let (normed, norm) = match &self.norm {
            Some(norm) => {
                let (normed, stats) = norm.forward(pass, &x)?;
                (normed, Some((x, stats)))
            }
            None => (x, None),
        };
        let (logits, mb) = (self.project.forward_aligned(pass, &normed)?, pass.mb);
        let losses = loss::cross_entropy(&logits, &mb.targets, mb.device_targets.as_ref(), Some(mb.scale), self.loss)?;
        Ok((losses, HeadActivations { before_sums, norm, normed, dlogits: logits }))
    }

    /// Returns dL/dx for L = scale · Σ losses. Deferred tasks keep the projection's input and the logits' gradient, [rows,
    /// vocab].
    pub fn backward(&self, pass: &mut BackwardPass<'_>, activations: HeadActivations) -> Result<Gradient> {
        let HeadActivations { before_sums, norm, normed, dlogits } = activations;
        let dnormed = self.project.backward(pass, &normed, &dlogits.into())?;
        drop(normed);
        let dx = match (&self.norm, norm) {
            (Some(layer), Some((x, stats))) => layer.backward(pass, &x, &stats, &dnormed, None)?,
            _ => dnormed.into(),
        };
        if self.sums.is_empty() {
            return Ok(dx);
        }
        Ok(self.sums.backward(pass, before_sums, None, dx.tensor)?.0.into())
    }

    /// Losses without a backward: logits only of rows that have a target, a few rows at a time.
    pub fn losses(&self, pass: ForwardPass<'_>, x: &Tensor) -> Result<Vec<f32>> {
        let mb = pass.mb;
        if mb.targets.len() != x.dims2()?.0 {
            bail!("{} targets for {} tokens", mb.targets.len(), x.dims2()?.0)
        }
        let wanted: Vec<usize> = (0..mb.targets.len()).filter(|&r| mb.targets[r] != IGNORED_TARGET).collect();
        let mut losses = vec![0.0; mb.targets.len()];
        let x = &self.sums.forward(pass, x.clone(), None)?.0;
        let rows_at_once = LOGIT_ROWS[usize::from(!x.device().is_cpu())];
        for rows in wanted.chunks(rows_at_once) {
            let logits = self.project.forward_aligned(pass, &self.normed_rows(pass, x, rows)?)?;
            let targets: Vec<u32> = rows.iter().map(|&r| mb.targets[r]).collect();
            let of_rows = loss::cross_entropy(&logits, &targets, None, None, self.loss)?.read()?;
            for (&row, loss) in rows.iter().zip(of_rows) {
                losses[row] = loss;
            }
        }
        Ok(losses)
    }

    /// Returns the logits of rows `rows` of `x`, `[rows.len(), vocab]`.
    pub fn logits(&self, pass: ForwardPass<'_>, x: &Tensor, rows: &[usize]) -> Result<Tensor> {
        let x = self.sums.forward(pass, x.clone(), None)?.0;
        let logits = self.project.forward(pass, &self.normed_rows(pass, &x, rows)?)?;
        if let Some(cap) = self.loss.cap {
            pointwise::softcap(&logits, cap)?;
        }
        Ok(logits)
    }

    fn normed_rows(&self, pass: ForwardPass<'_>, x: &Tensor, rows: &[usize]) -> Result<Tensor> {
        let x = embedding::take_rows(x, rows)?;
        match &self.norm {
            Some(norm) => Ok(norm.forward(pass, &x)?.0),
            None => Ok(x),
        }
    }
}
