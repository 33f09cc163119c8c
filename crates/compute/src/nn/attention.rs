//! Causal self-attention and its projections.

use candle_core::{Result, Tensor};

use super::{DropoutSite, GradientSink, Linear, MicroBatch};
use crate::kernels::attention;
use crate::kernels::attention::{AttentionMasks, AttentionShape, LayerKvCache};
use crate::kernels::pointwise::Rope;
use crate::model::Params;

/// An attention layer: projections, heads, and rotary positions where the model has them.
#[derive(Debug, Clone)]
pub struct Attention {
    pub qkv: Linear,
    pub out: Linear,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rope: Option<Rope>,
    pub dropout: DropoutSite,
}

/// The activations that the backward needs: the rotated projections, the heads' outputs, and the log-sum-exps.
#[derive(Debug)]
pub struct AttentionActivations {
    qkv: Tensor,
    heads: Tensor,
    lse: Tensor,
}

impl Attention {
    /// The shape that kernels are given for `batch` rows of `seq` tokens.
    #[must_use]
    pub fn shape(&self, batch: usize, seq: usize) -> AttentionShape {
        AttentionShape { batch, seq, heads: self.heads, kv_heads: self.kv_heads, head_dim: self.head_dim }
    }

    /// The queries, keys and values of `x`, rotated where the model has rotary positions.
    fn project(&self, params: &Params, x: &Tensor, start: usize, mb: &MicroBatch) -> Result<Tensor> {
        let qkv = self.qkv.forward(params, x, mb.math)?;
        if let Some(rope) = &self.rope {
            rope.rotate(&qkv, self.heads + self.kv_heads, mb.seq, start, false, mb.math)?;
        }
        Ok(qkv)
    }

    /// The forward before its last product.
    fn attend(&self, params: &Params, x: &Tensor, mb: &MicroBatch) -> Result<AttentionActivations> {
        let qkv = self.project(params, x, 0, mb)?;
        let dropout = self.dropout.mask(mb);
        let masks = AttentionMasks { dropout: dropout.as_ref(), valid_lengths: mb.valid_lengths.as_ref() };
        let (heads, lse) = attention::attention(&qkv, self.shape(mb.batch, mb.seq), masks, mb.math)?;
        Ok(AttentionActivations { qkv, heads, lse })
    }

    /// `x`: [batch·seq, d_model]. Returns the same shape.
    pub fn forward(&self, params: &Params, x: &Tensor, mb: &MicroBatch) -> Result<(Tensor, AttentionActivations)> {
        let activations = self.attend(params, x, mb)?;
        Ok((self.out.forward(params, &activations.heads, mb.math)?, activations))
    }

    /// The forward for tokens from position `start` on, over the cached keys and values of the tokens before them.
    pub fn extend(
        &self,
        params: &Params,
        x: &Tensor,
        mb: &MicroBatch,
        cache: &mut LayerKvCache,
        start: usize,
    ) -> Result<Tensor> {
        let qkv = self.project(params, x, start, mb)?;
        let heads = attention::attend_with_cache(&qkv, self.shape(mb.batch, mb.seq), start, cache, mb.math)?;
        self.out.forward(params, &heads, mb.math)
    }

    /// `x` is the forward's input. Without `activations`, the forward is computed again from it. Returns dL/dx. Deferred tasks keep
    /// `x`, the heads' outputs, and the gradients of the unrotated projections and of the layer's output; not the projections and
    /// log-sum-exps.
    pub fn backward(
        &self,
        params: &Params,
        grads: &mut GradientSink<'_>,
        x: &Tensor,
        activations: Option<AttentionActivations>,
        dy: &Tensor,
        mb: &MicroBatch,
    ) -> Result<Tensor> {
        let AttentionActivations { qkv, heads, lse } = match activations {
            Some(activations) => activations,
            None => self.attend(params, x, mb)?,
        };
        let dheads = self.out.backward(params, grads, &heads, dy, mb.math)?;
        let (shape, dropout) = (self.shape(mb.batch, mb.seq), self.dropout.mask(mb));
        let masks = AttentionMasks { dropout: dropout.as_ref(), valid_lengths: mb.valid_lengths.as_ref() };
        let dqkv = attention::attention_backward(&qkv, &heads, &lse, &dheads, shape, masks, mb.math)?;
        drop((qkv, heads, lse, dheads));
        if let Some(rope) = &self.rope {
            rope.rotate(&dqkv, self.heads + self.kv_heads, mb.seq, 0, true, mb.math)?;
        }
        self.qkv.backward(params, grads, x, &dqkv, mb.math)
    }
}
