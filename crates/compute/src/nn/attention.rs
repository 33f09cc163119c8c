//! Self-attention and its projections.

use candle_core::{Result, Tensor, bail};

use super::{BackwardPass, DropoutSite, ForwardPass, Linear, Norm, SumInputs, Sums};
use crate::kernels::Gradient;
use crate::kernels::attention::{self, AttentionMasks, AttentionShape};
use crate::kernels::pointwise::{self, Rope};
use runner_spec::model::{Heads, Mask};

/// An attention layer: projections, heads, and rotary positions where the model has them.
#[derive(Debug, Clone)]
pub struct Attention {
    pub qkv: Linear,
    pub out: Linear,
    pub heads: Heads,
    pub mask: Mask,
    /// Factor on scores.
    pub scale: f64,
    pub qk_norm: Option<QkNorm>,
    pub rope: Option<Rope>,
    pub dropout: DropoutSite,
    /// What replaces the values, and the outputs of the heads. Gates read the layer's input.
    pub value: Sums,
    pub attended: Sums,
}

/// RMSNorm of queries and keys.
#[derive(Debug, Clone)]
pub struct QkNorm {
    /// The norms of queries and of keys, and the widths of their rows: the width of a head, or of all heads.
    pub norms: [(Norm, usize); 2],
    /// True if it follows the rotation.
    pub rotates_first: bool,
}

/// The activations that the backward needs: the projections as the heads read them, the heads' outputs, and the log-sum-exps.
#[derive(Debug)]
pub struct AttentionActivations {
    pub(crate) qkv: Tensor,
    pub(crate) heads: Tensor,
    pub(crate) lse: Tensor,
    pub(crate) before_norms: Option<NormInputs>,
    pub(crate) before_sums: SumInputs,
}

/// Queries, keys and values; the inputs of norms; what the sums of values replaced.
type Projected = (Tensor, Option<NormInputs>, SumInputs);

/// The rows and statistics of the norms of queries and of keys.
pub(crate) type NormInputs = [(Tensor, Tensor); 2];

impl Attention {
    /// The shape that kernels are given for `batch` rows of `seq` tokens.
    pub fn shape(&self, batch: usize, seq: usize) -> AttentionShape {
        AttentionShape { batch, seq, heads: self.heads, mask: self.mask, scale: self.scale }
    }

    /// Rotates queries and keys of rows of `seq` tokens, the first of which is at position `start`; `back`, their gradients.
    fn rotate(&self, qkv: &Tensor, seq: usize, start: usize, back: bool) -> Result<()> {
        match &self.rope {
            Some(rope) => rope.rotate(qkv, self.heads.queries + self.heads.kv, seq, start, back),
            None => Ok(()),
        }
    }

    /// The first columns and the widths of queries and keys.
    fn query_and_key_columns(&self) -> [(usize, usize); 2] {
        let queries = self.heads.out_width();
        [(0, queries), (queries, self.heads.kv * self.heads.width)]
    }

    /// Norms queries and keys in place.
    fn norm(&self, pass: ForwardPass<'_>, qk_norm: &QkNorm, qkv: &Tensor) -> Result<NormInputs> {
        let one = |index: usize| -> Result<_> {
            let ((from, columns), (norm, width)) = (self.query_and_key_columns()[index], &qk_norm.norms[index]);
            let x = pointwise::take_columns(qkv, from, columns)?.reshape(((), *width))?;
            let (y, stats) = norm.forward(pass, &x)?;
            pointwise::put_columns(qkv, &y.reshape(((), columns))?, from)?;
            Ok((x, stats))
        };
        Ok([one(0)?, one(1)?])
    }

    /// Replaces the gradients of normed queries and keys by the gradients of the norms' inputs.
    fn norm_backward(
        &self,
        pass: &mut BackwardPass<'_>,
        qk_norm: &QkNorm,
        inputs: NormInputs,
        dqkv: &Tensor,
    ) -> Result<()> {
        let of = self.query_and_key_columns().into_iter().zip(&qk_norm.norms).zip(inputs);
        for (((from, columns), (norm, width)), (x, stats)) in of {
            let dy = pointwise::take_columns(dqkv, from, columns)?.reshape(((), *width))?;
            let dx = norm.backward(pass, &x, &stats, &dy, None)?.tensor;
            pointwise::put_columns(dqkv, &dx.reshape(((), columns))?, from)?;
        }
        Ok(())
    }

    /// The first column and the width of values.
    fn value_columns(&self) -> (usize, usize) {
        let width = self.heads.kv * self.heads.width;
        (self.heads.out_width() + width, width)
    }

    /// Replaces the values of `qkv`, in place.
    fn replace_values(&self, pass: ForwardPass<'_>, x: &Tensor, qkv: &Tensor) -> Result<SumInputs> {
        if self.value.is_empty() {
            return Ok(Vec::new());
        }
        let (from, width) = self.value_columns();
        let (values, inputs) = self.value.forward(pass, pointwise::take_columns(qkv, from, width)?, Some(x))?;
        pointwise::put_columns(qkv, &values, from)?;
        Ok(inputs)
    }

    /// Replaces the gradients of the new values by the gradients of the old ones. Returns what gates add to the gradient of `x`.
    fn replace_values_backward(
        &self,
        pass: &mut BackwardPass<'_>,
        x: &Tensor,
        inputs: SumInputs,
        dqkv: &Tensor,
    ) -> Result<Option<Tensor>> {
        if self.value.is_empty() {
            return Ok(None);
        }
        let (from, width) = self.value_columns();
        let dvalues = pointwise::take_columns(dqkv, from, width)?;
        let (dvalues, dx) = self.value.backward(pass, inputs, Some(x), dvalues)?;
        pointwise::put_columns(dqkv, &dvalues, from)?;
        Ok(dx)
    }

    /// The queries, keys and values of `x`, normed and rotated where the model does that.
    fn project(&self, pass: ForwardPass<'_>, x: &Tensor, start: usize) -> Result<Projected> {
        let (qkv, seq) = (self.qkv.forward(pass, x)?, pass.mb.seq);
        let before_sums = self.replace_values(pass, x, &qkv)?;
        let inputs = match &self.qk_norm {
            Some(qk_norm) if qk_norm.rotates_first => {
                self.rotate(&qkv, seq, start, false)?;
                Some(self.norm(pass, qk_norm, &qkv)?)
            }
            qk_norm => {
                let inputs = qk_norm.as_ref().map(|qk_norm| self.norm(pass, qk_norm, &qkv)).transpose()?;
                self.rotate(&qkv, seq, start, false)?;
                inputs
            }
        };
        Ok((qkv, inputs, before_sums))
    }

    /// The forward before its last product, and before what replaces the outputs of the heads.
    fn attend(&self, pass: ForwardPass<'_>, x: &Tensor) -> Result<AttentionActivations> {
        let ((qkv, before_norms, before_sums), mb) = (self.project(pass, x, 0)?, pass.mb);
        let dropout = self.dropout.mask(mb);
        let masks = AttentionMasks {
            dropout: dropout.as_ref(),
            valid_lengths: mb.valid_lengths.as_ref(),
            documents: mb.documents.as_ref(),
        };
        let (heads, lse) = attention::attention(&qkv, self.shape(mb.batch, mb.seq), masks)?;
        Ok(AttentionActivations { qkv, heads, lse, before_norms, before_sums })
    }

    /// The last product of the heads' outputs.
    fn project_heads(&self, pass: ForwardPass<'_>, x: &Tensor, heads: &Tensor) -> Result<Tensor> {
        if self.attended.is_empty() {
            return self.out.forward(pass, heads);
        }
        self.out.forward(pass, &self.attended.forward(pass, heads.clone(), Some(x))?.0)
    }

    /// `x`: `[batch·seq, d_model]`. Returns the same shape.
    pub fn forward(&self, pass: ForwardPass<'_>, x: &Tensor) -> Result<(Tensor, AttentionActivations)> {
        let activations = self.attend(pass, x)?;
        Ok((self.project_heads(pass, x, &activations.heads)?, activations))
    }

    /// The forward for tokens from position `start` on, over the cached keys and values of the tokens before them. It is an error where
    /// attention sees what follows a token, or with documents.
    pub fn extend(&self, pass: ForwardPass<'_>, x: &Tensor, cache: &Tensor, start: usize) -> Result<Tensor> {
        if pass.mb.documents.is_some() {
            bail!("a cache of keys and values has no documents")
        }
        let ((qkv, ..), mb) = (self.project(pass, x, start)?, pass.mb);
        let heads = attention::attend_with_cache(&qkv, self.shape(mb.batch, mb.seq), start, cache)?;
        self.project_heads(pass, x, &heads)
    }

    /// `x` is the forward's input. Without `activations`, the forward is computed again from it. Returns dL/dx. Deferred tasks keep
    /// `x`, the heads' outputs, and the gradients of the projections and of the layer's output; not the projections and
    /// log-sum-exps.
    pub fn backward(
        &self,
        pass: &mut BackwardPass<'_>,
        x: &Tensor,
        activations: Option<AttentionActivations>,
        dy: &Gradient,
    ) -> Result<Tensor> {
        let mb = pass.mb;
        let AttentionActivations { qkv, heads, lse, before_norms, before_sums } = match activations {
            Some(activations) => activations,
            None => self.attend(pass.forward(), x)?,
        };
        let (dheads, gated_by_heads) = if self.attended.is_empty() {
            (self.out.backward(pass, &heads, dy)?, None)
        } else {
            let (attended, inputs) = self.attended.forward(pass.forward(), heads.clone(), Some(x))?;
            let dattended = self.out.backward(pass, &attended, dy)?;
            drop(attended);
            self.attended.backward(pass, inputs, Some(x), dattended)?
        };
        let (shape, dropout) = (self.shape(mb.batch, mb.seq), self.dropout.mask(mb));
        let masks = AttentionMasks {
            dropout: dropout.as_ref(),
            valid_lengths: mb.valid_lengths.as_ref(),
            documents: mb.documents.as_ref(),
        };
        let is_projection = self.rope.is_none() && self.qk_norm.is_none() && self.value.is_empty();
        let row_sums = self.qkv.bias.is_some() && is_projection;
        let dqkv = attention::attention_backward(&qkv, &heads, &lse, &dheads, shape, masks, row_sums)?;
        drop((qkv, heads, lse, dheads));
        match (&self.qk_norm, before_norms) {
            (Some(qk_norm), Some(inputs)) if qk_norm.rotates_first => {
                self.norm_backward(pass, qk_norm, inputs, &dqkv.tensor)?;
                self.rotate(&dqkv.tensor, mb.seq, 0, true)?;
            }
            (qk_norm, inputs) => {
                self.rotate(&dqkv.tensor, mb.seq, 0, true)?;
                match (qk_norm, inputs) {
                    (None, _) => {}
                    (Some(qk_norm), Some(inputs)) => self.norm_backward(pass, qk_norm, inputs, &dqkv.tensor)?,
                    (Some(_), None) => bail!("the inputs of the norms of queries and keys are missing"),
                }
            }
        }
        let gated_by_values = self.replace_values_backward(pass, x, before_sums, &dqkv.tensor)?;
        let dx = self.qkv.backward(pass, x, &dqkv)?;
        for gates in [gated_by_heads, gated_by_values].into_iter().flatten() {
            pointwise::add_assign(&dx, &gates)?;
        }
        Ok(dx)
    }
}
