//! Self-attention and its projections.

use candle_core::{Result, Tensor, bail};

use super::{BackwardPass, DropoutSite, ForwardPass, Linear};
use crate::kernels::Gradient;
use crate::kernels::attention::{self, AttentionMasks, AttentionShape};
use crate::kernels::pointwise::Rope;
use runner_spec::model::{Heads, Mask};

/// An attention layer: projections, heads, and rotary positions where the model has them.
#[derive(Debug, Clone)]
pub struct Attention {
    pub qkv: Linear,
    pub out: Linear,
    pub heads: Heads,
    pub mask: Mask,
    pub rope: Option<Rope>,
    pub dropout: DropoutSite,
}

/// The activations that the backward needs: the rotated projections, the heads' outputs, and the log-sum-exps.
#[derive(Debug)]
pub struct AttentionActivations {
    pub(crate) qkv: Tensor,
    pub(crate) heads: Tensor,
    pub(crate) lse: Tensor,
}

impl Attention {
    /// The shape that kernels are given for `batch` rows of `seq` tokens.
    pub fn shape(&self, batch: usize, seq: usize) -> AttentionShape {
        AttentionShape { batch, seq, heads: self.heads, mask: self.mask }
    }

    /// The queries, keys and values of `x`, rotated where the model has rotary positions.
    fn project(&self, pass: ForwardPass<'_>, x: &Tensor, start: usize) -> Result<Tensor> {
        let qkv = self.qkv.forward(pass, x)?;
        if let Some(rope) = &self.rope {
            rope.rotate(&qkv, self.heads.queries + self.heads.kv, pass.mb.seq, start, false)?;
        }
        Ok(qkv)
    }

    /// The forward before its last product.
    fn attend(&self, pass: ForwardPass<'_>, x: &Tensor) -> Result<AttentionActivations> {
        let (qkv, mb) = (self.project(pass, x, 0)?, pass.mb);
        let dropout = self.dropout.mask(mb);
        let masks = AttentionMasks {
            dropout: dropout.as_ref(),
            valid_lengths: mb.valid_lengths.as_ref(),
            documents: mb.documents.as_ref(),
        };
        let (heads, lse) = attention::attention(&qkv, self.shape(mb.batch, mb.seq), masks)?;
        Ok(AttentionActivations { qkv, heads, lse })
    }

    /// `x`: `[batch·seq, d_model]`. Returns the same shape.
    pub fn forward(&self, pass: ForwardPass<'_>, x: &Tensor) -> Result<(Tensor, AttentionActivations)> {
        let activations = self.attend(pass, x)?;
        Ok((self.out.forward(pass, &activations.heads)?, activations))
    }

    /// The forward for tokens from position `start` on, over the cached keys and values of the tokens before them. It is an error where
    /// attention sees what follows a token, or with documents.
    pub fn extend(&self, pass: ForwardPass<'_>, x: &Tensor, cache: &Tensor, start: usize) -> Result<Tensor> {
        if pass.mb.documents.is_some() {
            bail!("a cache of keys and values has no documents")
        }
        let (qkv, mb) = (self.project(pass, x, start)?, pass.mb);
        let heads = attention::attend_with_cache(&qkv, self.shape(mb.batch, mb.seq), start, cache)?;
        self.out.forward(pass, &heads)
    }

    /// `x` is the forward's input. Without `activations`, the forward is computed again from it. Returns dL/dx. Deferred tasks keep
    /// `x`, the heads' outputs, and the gradients of the unrotated projections and of the layer's output; not the projections and
    /// log-sum-exps.
    pub fn backward(
        &self,
        pass: &mut BackwardPass<'_>,
        x: &Tensor,
        activations: Option<AttentionActivations>,
        dy: &Gradient,
    ) -> Result<Tensor> {
        let mb = pass.mb;
        let AttentionActivations { qkv, heads, lse } = match activations {
            Some(activations) => activations,
            None => self.attend(pass.forward(), x)?,
        };
        let dheads = self.out.backward(pass, &heads, dy)?;
        let (shape, dropout) = (self.shape(mb.batch, mb.seq), self.dropout.mask(mb));
        let masks = AttentionMasks {
            dropout: dropout.as_ref(),
            valid_lengths: mb.valid_lengths.as_ref(),
            documents: mb.documents.as_ref(),
        };
        let sums = self.qkv.bias.is_some() && self.rope.is_none();
        let dqkv = attention::attention_backward(&qkv, &heads, &lse, &dheads, shape, masks, sums)?;
        drop((qkv, heads, lse, dheads));
        if let Some(rope) = &self.rope {
            rope.rotate(&dqkv.tensor, self.heads.queries + self.heads.kv, mb.seq, 0, true)?;
        }
        self.qkv.backward(pass, x, &dqkv)
    }
}
