//! One transformer layer: x + attention(norm(x)), then x + mlp(norm(x)). `post_norm` has the order with the norms after the sums.

use candle_core::{Result, Tensor};

use super::attention::AttentionActivations;
use super::mlp::MlpActivations;
use super::post_norm::PostNormActivations;
use super::{Attention, DropoutSite, GradientSink, MicroBatch, Mlp, Norm, post_norm};
use crate::kernels::attention::LayerKvCache;
use crate::kernels::pointwise;
use crate::model::Params;
use runner_spec::experiment::{NormPlace, Recompute};

/// A layer of GPT-2 or Llama, which differ in its parts.
#[derive(Debug, Clone)]
pub struct TransformerLayer {
    pub place: NormPlace,
    pub norm1: Norm,
    pub attention: Attention,
    pub norm2: Norm,
    pub mlp: Mlp,
    /// Dropout of the attention's and of the MLP's output.
    pub dropout: [DropoutSite; 2],
    pub recompute: Recompute,
}

/// The activations that a layer's backward needs.
#[derive(Debug)]
pub enum LayerActivations {
    PreNorm(PreNormActivations),
    PostNorm(PostNormActivations),
    /// The layer's input, from which the backward computes the others again.
    Input(Tensor),
}

/// The activations of a layer with its norms before attention and MLP.
#[derive(Debug)]
pub struct PreNormActivations {
    x: Tensor,
    normed1: Tensor,
    stats1: Tensor,
    attention: Option<AttentionActivations>,
    middle: Tensor,
    normed2: Tensor,
    stats2: Tensor,
    mlp: MlpActivations,
}

impl TransformerLayer {
    /// `x`: [batch·seq, d_model]. Returns the same shape.
    pub fn forward(&self, params: &Params, x: Tensor, mb: &MicroBatch) -> Result<(Tensor, LayerActivations)> {
        let input = (self.recompute == Recompute::Block).then(|| x.clone());
        let (y, activations) = match self.place {
            NormPlace::Pre => {
                let activations = self.pre_norm_activations(params, x, mb)?;
                let y = self.mlp.project(params, &activations.mlp, mb.math)?;
                self.dropout[1].apply(&y, mb)?;
                pointwise::add_assign(&y, &activations.middle, mb.math)?;
                (y, LayerActivations::PreNorm(activations))
            }
            NormPlace::Post => {
                let (y, activations) = post_norm::forward(self, params, x, mb)?;
                (y, LayerActivations::PostNorm(activations))
            }
        };
        Ok((y, input.map_or(activations, LayerActivations::Input)))
    }

    /// The forward before the MLP's last product, which computes all that the backward reads. Dropout's masks are the same each time,
    /// since they are a function of `mb`.
    fn pre_norm_activations(&self, params: &Params, x: Tensor, mb: &MicroBatch) -> Result<PreNormActivations> {
        let (normed1, stats1) = self.norm1.forward(params, &x, mb.math)?;
        let (attended, attention) = self.attend(params, &normed1, mb)?;
        self.dropout[0].apply(&attended, mb)?;
        let (middle, normed2, stats2) = self.norm2.forward_sum(params, attended, &x, mb.math)?;
        let mlp = self.mlp.hidden(params, &normed2, mb)?;
        Ok(PreNormActivations { x, normed1, stats1, attention, middle, normed2, stats2, mlp })
    }

    /// The attention's forward. Its activations are dropped where the backward computes them again.
    pub(super) fn attend(
        &self,
        params: &Params,
        x: &Tensor,
        mb: &MicroBatch,
    ) -> Result<(Tensor, Option<AttentionActivations>)> {
        let (y, activations) = self.attention.forward(params, x, mb)?;
        Ok((y, (self.recompute != Recompute::Attention).then_some(activations)))
    }

    /// The forward for tokens from position `start` on, without a backward.
    pub fn extend(
        &self,
        params: &Params,
        x: &Tensor,
        mb: &MicroBatch,
        cache: &mut LayerKvCache,
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

    /// Returns dL/dx. Deferred tasks keep the tensors that attention and MLP name (per position 5·d_model + qkv + the MLP's widths,
    /// `dy` among them) and four or two vectors of the norms; the residual stream and the statistics are freed.
    pub fn backward(
        &self,
        params: &Params,
        grads: &mut GradientSink<'_>,
        activations: LayerActivations,
        dy: &Tensor,
        mb: &MicroBatch,
    ) -> Result<Tensor> {
        let activations = match (activations, self.place) {
            (LayerActivations::PreNorm(activations), _) => activations,
            (LayerActivations::Input(x), NormPlace::Pre) => self.pre_norm_activations(params, x, mb)?,
            (LayerActivations::PostNorm(activations), _) => {
                return post_norm::backward(self, params, grads, activations, dy, mb);
            }
            (LayerActivations::Input(x), NormPlace::Post) => {
                let (_, activations) = post_norm::forward(self, params, x, mb)?;
                return post_norm::backward(self, params, grads, activations, dy, mb);
            }
        };
        let PreNormActivations { x, normed1, stats1, attention, middle, normed2, stats2, mlp } = activations;
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
