//! One transformer layer: a residual stream, to which each part f adds its output. Norms come before a part, x + f(norm(x)), after the sum
//! (Vaswani et al. 2017), norm(x + f(x)), or before the sum, x + norm(f(x)) and x + norm(f(norm(x))).

use candle_core::{Result, Tensor, bail};

use super::attention::AttentionActivations;
use super::mlp::MlpActivations;
use super::{Attention, BackwardPass, DropoutSite, ForwardPass, Mlp, Norm, SumInputs, Sums};
use crate::kernels::{Gradient, pointwise};
use runner_spec::experiment::{NormPlace, Recompute};

/// The parts of a layer, one after the other.
#[derive(Debug, Clone)]
pub struct TransformerLayer {
    pub norm_place: NormPlace,
    /// What replaces the input.
    pub input: Sums,
    pub sublayers: Vec<Sublayer>,
    pub recompute: Recompute,
}

/// A part of a layer. The layer's [`NormPlace`] decides which norms it has.
#[derive(Debug, Clone)]
pub struct Sublayer {
    pub before: Option<Norm>,
    pub part: LayerPart,
    pub after: Option<Norm>,
    /// Drops elements of the part's output.
    pub dropout: DropoutSite,
}

/// A part of a layer.
#[derive(Debug, Clone)]
pub enum LayerPart {
    Attention(Box<Attention>),
    Mlp(Mlp),
}

/// The activations that a layer's backward needs.
#[derive(Debug)]
pub enum LayerActivations {
    All(SumInputs, Vec<SublayerActivations>),
    /// The layer's input, from which the backward computes the others again.
    Input(Tensor),
}

/// The activations of a part and its norms.
#[derive(Debug)]
pub struct SublayerActivations {
    /// The residual stream before the part.
    pub(crate) x: Tensor,
    /// Output and statistics of the norm before the part.
    pub(crate) before: Option<(Tensor, Tensor)>,
    pub(crate) part: PartActivations,
    /// Input and statistics of the norm after the part.
    pub(crate) after: Option<(Tensor, Tensor)>,
}

#[derive(Debug)]
pub(crate) enum PartActivations {
    /// Nothing where the backward computes them again.
    Attention(Option<AttentionActivations>),
    Mlp(MlpActivations),
}

/// What a forward is for.
#[derive(Clone, Copy)]
enum Purpose<'a> {
    /// The layer's output, and the activations.
    Output,
    /// Only the activations, in the backward: the last product may be left out.
    Activations,
    /// The output for tokens from a position on, over a cache of keys and values.
    Decoding(&'a Tensor, usize),
}

impl TransformerLayer {
    /// The attention of the layer, if it has one.
    pub fn attention(&self) -> Option<&Attention> {
        self.sublayers.iter().find_map(|sublayer| match &sublayer.part {
            LayerPart::Attention(attention) => Some(&**attention),
            LayerPart::Mlp(_) => None,
        })
    }

    /// `x`: `[batch·seq, d_model]`. Returns the same shape.
    pub fn forward(&self, pass: ForwardPass<'_>, x: Tensor) -> Result<(Tensor, LayerActivations)> {
        let input = (self.recompute == Recompute::Block).then(|| x.clone());
        let (x, before_sums) = self.input.forward(pass, x, None)?;
        let (y, activations) = self.run(pass, x, Purpose::Output)?;
        Ok((y, input.map_or(LayerActivations::All(before_sums, activations), LayerActivations::Input)))
    }

    /// The forward for tokens from position `start` on, without a backward. `cache` belongs to the layer's attention.
    pub fn extend(&self, pass: ForwardPass<'_>, x: Tensor, cache: &Tensor, start: usize) -> Result<Tensor> {
        let x = self.input.forward(pass, x, None)?.0;
        Ok(self.run(pass, x, Purpose::Decoding(cache, start))?.0)
    }

    /// Dropout's masks are the same each time, since they are a function of the micro-batch.
    fn run(
        &self,
        pass: ForwardPass<'_>,
        x: Tensor,
        purpose: Purpose<'_>,
    ) -> Result<(Tensor, Vec<SublayerActivations>)> {
        let mut activations = Vec::with_capacity(self.sublayers.len());
        let mut stream = x;
        // The output of the last part, which is still to be added to the stream. A norm can do both in one pass.
        let mut pending: Option<Tensor> = None;
        for (index, sublayer) in self.sublayers.iter().enumerate() {
            let (x, before) = match (&sublayer.before, pending.take()) {
                (Some(norm), Some(y)) => {
                    let (sum, normed, stats) = norm.forward_sum(pass, y, &stream)?;
                    (sum, Some((normed, stats)))
                }
                (Some(norm), None) => {
                    let normed = norm.forward(pass, &stream)?;
                    (stream, Some(normed))
                }
                (None, pending) => (added(pending, stream)?, None),
            };
            let input = before.as_ref().map_or(&x, |(normed, _)| normed);
            let is_last = index + 1 == self.sublayers.len();
            let (y, part) = match &sublayer.part {
                LayerPart::Attention(attention) => match purpose {
                    Purpose::Decoding(cache, start) => {
                        (attention.extend(pass, input, cache, start)?, PartActivations::Attention(None))
                    }
                    Purpose::Output | Purpose::Activations => {
                        let (y, kept) = attention.forward(pass, input)?;
                        let kept = (self.recompute != Recompute::Attention).then_some(kept);
                        (y, PartActivations::Attention(kept))
                    }
                },
                LayerPart::Mlp(mlp) => {
                    let hidden = mlp.hidden(pass, input)?;
                    let adds = is_last && self.norm_place == NormPlace::Pre;
                    if adds && matches!(purpose, Purpose::Activations) {
                        (x.clone(), PartActivations::Mlp(hidden))
                    } else if adds && sublayer.dropout.mask(pass.mb).is_none() {
                        let y = mlp.project_sum(pass, &hidden, &x)?;
                        let part = PartActivations::Mlp(hidden);
                        activations.push(SublayerActivations { x, before, part, after: None });
                        return Ok((y, activations));
                    } else {
                        (mlp.project(pass, &hidden)?, PartActivations::Mlp(hidden))
                    }
                }
            };
            if is_last && self.norm_place == NormPlace::Pre && matches!(purpose, Purpose::Activations) {
                activations.push(SublayerActivations { x, before, part, after: None });
                return Ok((y, activations));
            }
            let after;
            (stream, pending, after) = match (&sublayer.after, self.norm_place) {
                (None, _) => {
                    sublayer.dropout.apply(&y, pass.mb)?;
                    (x.clone(), Some(y), None)
                }
                (Some(norm), NormPlace::Post) => {
                    sublayer.dropout.apply(&y, pass.mb)?;
                    pointwise::add_assign(&y, &x)?;
                    let (normed, stats) = norm.forward(pass, &y)?;
                    (normed, None, Some((y, stats)))
                }
                (Some(norm), _) => {
                    let (normed, stats) = norm.forward(pass, &y)?;
                    sublayer.dropout.apply(&normed, pass.mb)?;
                    (x.clone(), Some(normed), Some((y, stats)))
                }
            };
            activations.push(SublayerActivations { x, before, part, after });
        }
        Ok((added(pending, stream)?, activations))
    }

    /// Returns dL/dx. Deferred tasks keep the tensors that [`Attention::backward`] and [`Mlp::backward`] list, `dy` among them, and the
    /// gradients of the norms' gains and biases. The residual stream and the statistics are freed.
    pub fn backward(
        &self,
        pass: &mut BackwardPass<'_>,
        activations: LayerActivations,
        dy: &Gradient,
    ) -> Result<Gradient> {
        let (before_sums, mut activations) = match activations {
            LayerActivations::All(before_sums, activations) => (before_sums, activations),
            LayerActivations::Input(x) => {
                let (x, before_sums) = self.input.forward(pass.forward(), x, None)?;
                (before_sums, self.run(pass.forward(), x, Purpose::Activations)?.1)
            }
        };
        let mut dy = dy.clone();
        for sublayer in self.sublayers.iter().rev() {
            let Some(kept) = activations.pop() else { bail!("a layer has no activations of one of its parts") };
            dy = sublayer.backward(pass, kept, dy, self.norm_place)?;
        }
        if self.input.is_empty() {
            return Ok(dy);
        }
        Ok(self.input.backward(pass, before_sums, None, dy.tensor)?.0.into())
    }
}

/// `y` plus the stream, in the buffer of `y`.
fn added(y: Option<Tensor>, stream: Tensor) -> Result<Tensor> {
    let Some(y) = y else { return Ok(stream) };
    pointwise::add_assign(&y, &stream)?;
    Ok(y)
}

impl Sublayer {
    /// Returns dL/dx of the residual stream before the part. Sums of gradients are made in buffers that no deferred task shares.
    fn backward(
        &self,
        pass: &mut BackwardPass<'_>,
        kept: SublayerActivations,
        dy: Gradient,
        place: NormPlace,
    ) -> Result<Gradient> {
        let SublayerActivations { x, before, part, after } = kept;
        // The gradient that bypasses the part along the stream, and the gradient of the part's output.
        let (skip, dpart) = match (&self.after, after) {
            (Some(norm), Some((sum, stats))) if place == NormPlace::Post => {
                let dsum = norm.backward(pass, &sum, &stats, &dy.tensor, None)?;
                let dpart = self.dropout.backward(&dsum, pass.mb)?;
                (dsum, dpart)
            }
            (Some(norm), Some((y, stats))) => {
                let dnormed = self.dropout.backward(&dy, pass.mb)?;
                let dpart = norm.backward(pass, &y, &stats, &dnormed.tensor, None)?;
                (dy, dpart)
            }
            _ => {
                let dpart = self.dropout.backward(&dy, pass.mb)?;
                (dy, dpart)
            }
        };
        let input = before.as_ref().map_or(&x, |(normed, _)| normed);
        let dinput = match (&self.part, part) {
            (LayerPart::Attention(attention), PartActivations::Attention(kept)) => {
                attention.backward(pass, input, kept, &dpart)?
            }
            (LayerPart::Mlp(mlp), PartActivations::Mlp(kept)) => mlp.backward(pass, input, kept, &dpart)?,
            _ => bail!("activations of another part"),
        };
        drop(dpart);
        if let (Some(norm), Some((normed, stats))) = (&self.before, before) {
            drop(normed);
            return norm.backward(pass, &x, &stats, &dinput, Some(&skip.tensor));
        }
        drop(x);
        pointwise::add_assign(&dinput, &skip.tensor)?;
        Ok(dinput.into())
    }
}
