//! One transformer layer. With norms before: x + attention(norm(x)), then x + mlp(norm(x)); `post_norm` has the other order.

use candle_core::{Result, Tensor, bail};

use super::{Attention, Dropouts, GradSink, MicroBatch, Mlp, Norm, attention, mlp, post_norm};
use crate::kernels::attention::Cache;
use crate::kernels::pointwise;
use crate::model::Params;
use runner_spec::experiment::{NormPlace, Recompute};

/// GPT-2's and Llama's layers are this with other parts.
#[derive(Debug, Clone)]
pub struct TransformerLayer {
    pub place: NormPlace,
    pub norm1: Norm,
    pub attention: Attention,
    pub norm2: Norm,
    pub mlp: Mlp,
    /// On the attention's and on the MLP's output.
    pub dropout: [Dropouts; 2],
    pub recompute: Recompute,
}

/// What the backward needs, or makes again.
#[derive(Debug)]
pub struct Saved(Kept);

#[derive(Debug)]
enum Kept {
    Pre(PreNorm),
    Post(post_norm::Saved),
    /// The layer's input, to run the forward on again.
    Input(Tensor),
}

#[derive(Debug)]
struct PreNorm {
    x: Tensor,
    normed1: Tensor,
    stats1: Tensor,
    attention: attention::Saved,
    middle: Tensor,
    normed2: Tensor,
    stats2: Tensor,
    mlp: mlp::Saved,
}

impl TransformerLayer {
    /// `x`: [batch·seq, d_model]. Returns the same shape.
    pub fn forward(&self, params: &Params, x: Tensor, mb: &MicroBatch) -> Result<(Tensor, Saved)> {
        let input = (self.recompute == Recompute::Block).then(|| x.clone());
        let (y, kept) = match self.place {
            NormPlace::Pre => {
                let saved = self.keep(params, x, mb)?;
                let y = self.mlp.project(params, &saved.mlp, mb.math)?;
                self.dropout[1].apply(&y, mb)?;
                pointwise::add_assign(&y, &saved.middle, mb.math)?;
                (y, Kept::Pre(saved))
            }
            NormPlace::Post => {
                let (y, saved) = post_norm::forward(self, params, x, mb)?;
                (y, Kept::Post(saved))
            }
        };
        Ok((y, Saved(input.map_or(kept, Kept::Input))))
    }

    /// The forward before the MLP's last product: all that the backward reads.
    fn keep(&self, params: &Params, x: Tensor, mb: &MicroBatch) -> Result<PreNorm> {
        let (normed1, stats1) = self.norm1.forward(params, &x, mb.math)?;
        let (attended, attention) = self.attend(params, &normed1, mb)?;
        self.dropout[0].apply(&attended, mb)?;
        let (middle, normed2, stats2) = self.norm2.forward_sum(params, attended, &x, mb.math)?;
        let mlp = self.mlp.hidden(params, &normed2, mb)?;
        Ok(PreNorm { x, normed1, stats1, attention, middle, normed2, stats2, mlp })
    }

    /// What the backward of a layer of which only the input `x` was kept needs. Dropout's masks are the same as before, since
    /// they follow from what `mb` says.
    fn again(&self, params: &Params, x: Tensor, mb: &MicroBatch) -> Result<Kept> {
        Ok(match self.place {
            NormPlace::Pre => Kept::Pre(self.keep(params, x, mb)?),
            NormPlace::Post => Kept::Post(post_norm::forward(self, params, x, mb)?.1),
        })
    }

    /// The attention's forward; what it keeps is dropped where it is computed again alone.
    pub(super) fn attend(&self, params: &Params, x: &Tensor, mb: &MicroBatch) -> Result<(Tensor, attention::Saved)> {
        let (y, saved) = self.attention.forward(params, x, mb)?;
        Ok((y, if self.recompute == Recompute::Attention { saved.dropped() } else { saved }))
    }

    /// The forward for tokens from position `start` on, without a backward.
    pub fn extend(
        &self,
        params: &Params,
        x: &Tensor,
        mb: &MicroBatch,
        cache: &mut Cache,
        start: usize,
    ) -> Result<Tensor> {
        if self.place == NormPlace::Post {
            return post_norm::extend(self, params, x, mb, cache, start);
        }
        let (normed, _) = self.norm1.forward(params, x, mb.math)?;
        let middle = self.attention.extend(params, &normed, mb, cache, start)?;
        pointwise::add_assign(&middle, x, mb.math)?;
        let (normed, _) = self.norm2.forward(params, &middle, mb.math)?;
        let (y, _) = self.mlp.forward(params, &normed, mb)?;
        pointwise::add_assign(&y, &middle, mb.math)?;
        Ok(y)
    }

    /// Returns dL/dx. Weight work keeps what attention and MLP say (per position 5·d_model + qkv + the MLP's widths, `dy`
    /// among them) and four or two vectors of the norms; the residual stream and the statistics are free.
    pub fn backward(
        &self,
        params: &Params,
        grads: &mut GradSink<'_>,
        saved: Saved,
        dy: &Tensor,
        mb: &MicroBatch,
    ) -> Result<Tensor> {
        let kept = match saved.0 {
            Kept::Input(x) => self.again(params, x, mb)?,
            kept => kept,
        };
        let saved = match kept {
            Kept::Pre(saved) => saved,
            Kept::Post(saved) => return post_norm::backward(self, params, grads, saved, dy, mb),
            Kept::Input(_) => bail!("a layer was to compute its forward again, twice"),
        };
        let PreNorm { x, normed1, stats1, attention, middle, normed2, stats2, mlp } = saved;
        let dmlp = self.dropout[1].backward(dy, mb)?;
        let dnormed = self.mlp.backward(params, grads, &normed2, mlp, &dmlp, mb)?;
        drop((normed2, dmlp));
        let dmiddle = self.norm2.backward(params, grads, &middle, &stats2, &dnormed, Some(dy), mb.math)?;
        drop((middle, dnormed));
        let dattention = self.dropout[0].backward(&dmiddle, mb)?;
        let dnormed = self.attention.backward(params, grads, &normed1, attention, &dattention, mb)?;
        drop((normed1, dattention));
        self.norm1.backward(params, grads, &x, &stats1, &dnormed, Some(&dmiddle), mb.math)
    }
}
