//! Causal self-attention with its projections.

use candle_core::{Result, Tensor};

use super::{Dropouts, GradSink, Linear, MicroBatch};
use crate::kernels::attention;
use crate::kernels::attention::{Cache, Masks, Shape};
use crate::kernels::pointwise::Rope;
use crate::model::Params;

/// Projections, heads, and rotary positions where the model has them.
#[derive(Debug, Clone)]
pub struct Attention {
    pub qkv: Linear,
    pub out: Linear,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rope: Option<Rope>,
    pub dropout: Dropouts,
}

/// What the backward needs, or nothing: then it computes that again from the layer's input.
#[derive(Debug)]
pub struct Saved(Option<Kept>);

/// The rotated projections, the heads' outputs, and the log-sum-exps.
#[derive(Debug)]
struct Kept {
    qkv: Tensor,
    heads: Tensor,
    lse: Tensor,
}

impl Saved {
    /// As if nothing had been kept.
    #[must_use]
    pub fn dropped(self) -> Self {
        Self(None)
    }
}

impl Attention {
    /// The kernels' shape for `batch` rows of `seq` tokens.
    #[must_use]
    pub fn shape(&self, batch: usize, seq: usize) -> Shape {
        Shape { batch, seq, heads: self.heads, kv_heads: self.kv_heads, head_dim: self.head_dim }
    }

    fn project(&self, params: &Params, x: &Tensor, start: usize, mb: &MicroBatch) -> Result<Tensor> {
        let qkv = self.qkv.forward(params, x, mb.math)?;
        if let Some(rope) = &self.rope {
            rope.rotate(&qkv, self.heads + self.kv_heads, mb.seq, start, false, mb.math)?;
        }
        Ok(qkv)
    }

    /// The forward before its last product.
    fn attend(&self, params: &Params, x: &Tensor, mb: &MicroBatch) -> Result<Kept> {
        let qkv = self.project(params, x, 0, mb)?;
        let dropout = self.dropout.mask(mb);
        let masks = Masks { dropout: dropout.as_ref(), filled: mb.filled.as_ref() };
        let (heads, lse) = attention::attention(&qkv, self.shape(mb.batch, mb.seq), masks, mb.math)?;
        Ok(Kept { qkv, heads, lse })
    }

    /// `x`: [batch·seq, d_model]. Returns the same shape.
    pub fn forward(&self, params: &Params, x: &Tensor, mb: &MicroBatch) -> Result<(Tensor, Saved)> {
        let kept = self.attend(params, x, mb)?;
        Ok((self.out.forward(params, &kept.heads, mb.math)?, Saved(Some(kept))))
    }

    /// The forward for tokens from position `start` on, over the keys and values of those before.
    pub fn extend(
        &self,
        params: &Params,
        x: &Tensor,
        mb: &MicroBatch,
        cache: &mut Cache,
        start: usize,
    ) -> Result<Tensor> {
        let qkv = self.project(params, x, start, mb)?;
        let heads = attention::attend(&qkv, self.shape(mb.batch, mb.seq), start, cache, mb.math)?;
        self.out.forward(params, &heads, mb.math)
    }

    /// `x` as in the forward. Returns dL/dx. Weight work keeps `x`, the heads' outputs, and the gradients of the unrotated
    /// projections and of the layer's output; not the projections and log-sum-exps.
    pub fn backward(
        &self,
        params: &Params,
        grads: &mut GradSink<'_>,
        x: &Tensor,
        saved: Saved,
        dy: &Tensor,
        mb: &MicroBatch,
    ) -> Result<Tensor> {
        let Kept { qkv, heads, lse } = match saved.0 {
            Some(kept) => kept,
            None => self.attend(params, x, mb)?,
        };
        let dheads = self.out.backward(params, grads, &heads, dy, mb.math)?;
        let (shape, dropout) = (self.shape(mb.batch, mb.seq), self.dropout.mask(mb));
        let masks = Masks { dropout: dropout.as_ref(), filled: mb.filled.as_ref() };
        let dqkv = attention::attention_backward(&qkv, &heads, &lse, &dheads, shape, masks, mb.math)?;
        drop((qkv, heads, lse, dheads));
        if let Some(rope) = &self.rope {
            rope.rotate(&dqkv, self.heads + self.kv_heads, mb.seq, 0, true, mb.math)?;
        }
        self.qkv.backward(params, grads, x, &dqkv, mb.math)
    }
}
