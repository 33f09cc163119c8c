//! One transformer layer: x + attention(norm(x)), then x + mlp(norm(x)); or, with the norms after the sums (Vaswani et al. 2017),
//! norm(x + attention(x)), then norm(x + mlp(x)).

use candle_core::{Result, Tensor};

use super::attention::AttentionActivations;
use super::mlp::MlpActivations;
use super::{Attention, BackwardPass, DropoutSite, ForwardPass, Mlp, Norm};
use crate::kernels::{Gradient, pointwise};
use runner_spec::experiment::{NormPlace, Recompute};

/// A layer of GPT-2 or Llama, which differ in its parts.
#[derive(Debug, Clone)]
pub struct TransformerLayer {
    pub norm_place: NormPlace,
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
    pub(crate) x: Tensor,
    pub(crate) normed1: Tensor,
    pub(crate) stats1: Tensor,
    pub(crate) attention: Option<AttentionActivations>,
    pub(crate) middle: Tensor,
    pub(crate) normed2: Tensor,
    pub(crate) stats2: Tensor,
    pub(crate) mlp: MlpActivations,
}

/// The activations of a layer with its norms after the sums.
#[derive(Debug)]
pub struct PostNormActivations {
    pub(crate) x: Tensor,
    pub(crate) attention: Option<AttentionActivations>,
    /// Input of the first norm; `middle` is its output.
    pub(crate) sum1: Tensor,
    pub(crate) stats1: Tensor,
    pub(crate) middle: Tensor,
    pub(crate) mlp: MlpActivations,
    /// Input of the second norm.
    pub(crate) sum2: Tensor,
    pub(crate) stats2: Tensor,
}

/// The attention's output, and the activations that its backward needs, unless it computes them again.
type Attended = (Tensor, Option<AttentionActivations>);

impl TransformerLayer {
    /// `x`: `[batch·seq, d_model]`. Returns the same shape.
    pub fn forward(&self, pass: ForwardPass<'_>, x: Tensor) -> Result<(Tensor, LayerActivations)> {
        let input = (self.recompute == Recompute::Block).then(|| x.clone());
        let (y, activations) = self.forward_with(pass, x, |x| self.attend(pass, x))?;
        Ok((y, input.map_or(activations, LayerActivations::Input)))
    }

    /// The forward for tokens from position `start` on, without a backward.
    pub fn extend(&self, pass: ForwardPass<'_>, x: Tensor, cache: &Tensor, start: usize) -> Result<Tensor> {
        Ok(self.forward_with(pass, x, |x| Ok((self.attention.extend(pass, x, cache, start)?, None)))?.0)
    }

    /// The forward in which `attend` runs the attention.
    fn forward_with(
        &self,
        pass: ForwardPass<'_>,
        x: Tensor,
        attend: impl FnOnce(&Tensor) -> Result<Attended>,
    ) -> Result<(Tensor, LayerActivations)> {
        match self.norm_place {
            NormPlace::Pre => {
                let activations = self.pre_norm_activations(pass, x, attend)?;
                let y = if self.dropout[1].mask(pass.mb).is_none() {
                    self.mlp.project_sum(pass, &activations.mlp, &activations.middle)?
                } else {
                    let y = self.mlp.project(pass, &activations.mlp)?;
                    self.dropout[1].apply(&y, pass.mb)?;
                    pointwise::add_assign(&y, &activations.middle)?;
                    y
                };
                Ok((y, LayerActivations::PreNorm(activations)))
            }
            NormPlace::Post => {
                let (y, activations) = self.post_norm_forward(pass, x, attend)?;
                Ok((y, LayerActivations::PostNorm(activations)))
            }
        }
    }

    /// The forward before the MLP's last product, which computes all that the backward reads. Dropout's masks are the same each time,
    /// since they are a function of the micro-batch.
    fn pre_norm_activations(
        &self,
        pass: ForwardPass<'_>,
        x: Tensor,
        attend: impl FnOnce(&Tensor) -> Result<Attended>,
    ) -> Result<PreNormActivations> {
        let (normed1, stats1) = self.norm1.forward(pass, &x)?;
        let (attended, attention) = attend(&normed1)?;
        self.dropout[0].apply(&attended, pass.mb)?;
        let (middle, normed2, stats2) = self.norm2.forward_sum(pass, attended, &x)?;
        let mlp = self.mlp.hidden(pass, &normed2)?;
        Ok(PreNormActivations { x, normed1, stats1, attention, middle, normed2, stats2, mlp })
    }

    /// The attention's forward. Its activations are dropped where the backward computes them again.
    fn attend(&self, pass: ForwardPass<'_>, x: &Tensor) -> Result<Attended> {
        let (y, activations) = self.attention.forward(pass, x)?;
        Ok((y, (self.recompute != Recompute::Attention).then_some(activations)))
    }

    /// Returns dL/dx. Deferred tasks keep the tensors that [`Attention::backward`] and [`Mlp::backward`] list, `dy` among them: for each
    /// position 5·d_model + qkv + the MLP's widths. They also keep the norms' gradients: four vectors for LayerNorm, two for RMSNorm. The
    /// residual stream and the statistics are freed.
    pub fn backward(
        &self,
        pass: &mut BackwardPass<'_>,
        activations: LayerActivations,
        dy: &Gradient,
    ) -> Result<Gradient> {
        let (again, mb) = (pass.forward(), pass.mb);
        let activations = match (activations, self.norm_place) {
            (LayerActivations::PreNorm(activations), _) => activations,
            (LayerActivations::Input(x), NormPlace::Pre) => {
                self.pre_norm_activations(again, x, |x| self.attend(again, x))?
            }
            (LayerActivations::PostNorm(activations), _) => return self.post_norm_backward(pass, activations, dy),
            (LayerActivations::Input(x), NormPlace::Post) => {
                let (_, activations) = self.post_norm_forward(again, x, |x| self.attend(again, x))?;
                return self.post_norm_backward(pass, activations, dy);
            }
        };
        let PreNormActivations { x, normed1, stats1, attention, middle, normed2, stats2, mlp } = activations;
        let dmlp = self.dropout[1].backward(dy, mb)?;
        let dnormed = self.mlp.backward(pass, &normed2, mlp, &dmlp)?;
        drop((normed2, dmlp));
        let dmiddle = self.norm2.backward(pass, &middle, &stats2, &dnormed, Some(&dy.tensor))?;
        drop((middle, dnormed));
        let dattention = self.dropout[0].backward(&dmiddle, mb)?;
        let dnormed = self.attention.backward(pass, &normed1, attention, &dattention)?;
        drop((normed1, dattention));
        self.norm1.backward(pass, &x, &stats1, &dnormed, Some(&dmiddle.tensor))
    }

    /// Returns the layer's output and its activations. `attend` runs the attention.
    fn post_norm_forward(
        &self,
        pass: ForwardPass<'_>,
        x: Tensor,
        attend: impl FnOnce(&Tensor) -> Result<Attended>,
    ) -> Result<(Tensor, PostNormActivations)> {
        let mb = pass.mb;
        let (sum1, attention) = attend(&x)?;
        self.dropout[0].apply(&sum1, mb)?;
        pointwise::add_assign(&sum1, &x)?;
        let (middle, stats1) = self.norm1.forward(pass, &sum1)?;
        let (sum2, mlp) = self.mlp.forward(pass, &middle)?;
        self.dropout[1].apply(&sum2, mb)?;
        pointwise::add_assign(&sum2, &middle)?;
        let (y, stats2) = self.norm2.forward(pass, &sum2)?;
        Ok((y, PostNormActivations { x, attention, sum1, stats1, middle, mlp, sum2, stats2 }))
    }

    /// Returns dL/dx. Sums of gradients are made in buffers that no deferred task shares.
    fn post_norm_backward(
        &self,
        pass: &mut BackwardPass<'_>,
        activations: PostNormActivations,
        dy: &Gradient,
    ) -> Result<Gradient> {
        let mb = pass.mb;
        let PostNormActivations { x, attention, sum1, stats1, middle, mlp, sum2, stats2 } = activations;
        let dsum = self.norm2.backward(pass, &sum2, &stats2, &dy.tensor, None)?;
        drop(sum2);
        let dmlp = self.dropout[1].backward(&dsum, mb)?;
        let dmiddle = self.mlp.backward(pass, &middle, mlp, &dmlp)?;
        drop((middle, dmlp));
        pointwise::add_assign(&dmiddle, &dsum.tensor)?;
        let dsum = self.norm1.backward(pass, &sum1, &stats1, &dmiddle, None)?;
        drop((sum1, dmiddle));
        let dattention = self.dropout[0].backward(&dsum, mb)?;
        let dx = self.attention.backward(pass, &x, attention, &dattention)?;
        pointwise::add_assign(&dx, &dsum.tensor)?;
        Ok(dx.into())
    }
}
