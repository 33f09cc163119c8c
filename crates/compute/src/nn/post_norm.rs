//! A transformer layer with its norms after the sums (Vaswani et al. 2017): norm(x + attention(x)), then norm(x + mlp(x)).

use candle_core::{Result, Tensor};

use super::attention::AttentionActivations;
use super::mlp::MlpActivations;
use super::{GradientSink, MicroBatch, TransformerLayer};
use crate::kernels::attention::LayerKvCache;
use crate::kernels::pointwise;
use crate::model::Params;

/// The activations of a layer with its norms after the sums.
#[derive(Debug)]
pub struct PostNormActivations {
    x: Tensor,
    attention: Option<AttentionActivations>,
    /// Input of the first norm; `middle` is its output.
    sum1: Tensor,
    stats1: Tensor,
    middle: Tensor,
    mlp: MlpActivations,
    /// Input of the second norm.
    sum2: Tensor,
    stats2: Tensor,
}

pub(super) fn forward(
    layer: &TransformerLayer,
    params: &Params,
    x: Tensor,
    mb: &MicroBatch,
) -> Result<(Tensor, PostNormActivations)> {
    let (sum1, attention) = layer.attend(params, &x, mb)?;
    layer.dropout[0].apply(&sum1, mb)?;
    pointwise::add_assign(&sum1, &x, mb.math)?;
    let (middle, stats1) = layer.norm1.forward(params, &sum1, mb.math)?;
    let (sum2, mlp) = layer.mlp.forward(params, &middle, mb)?;
    layer.dropout[1].apply(&sum2, mb)?;
    pointwise::add_assign(&sum2, &middle, mb.math)?;
    let (y, stats2) = layer.norm2.forward(params, &sum2, mb.math)?;
    Ok((y, PostNormActivations { x, attention, sum1, stats1, middle, mlp, sum2, stats2 }))
}

pub(super) fn extend(
    layer: &TransformerLayer,
    params: &Params,
    x: &Tensor,
    mb: &MicroBatch,
    cache: &mut LayerKvCache,
    start: usize,
) -> Result<Tensor> {
    let sum = layer.attention.extend(params, x, mb, cache, start)?;
    pointwise::add_assign(&sum, x, mb.math)?;
    let (middle, _) = layer.norm1.forward(params, &sum, mb.math)?;
    let (sum, _) = layer.mlp.forward(params, &middle, mb)?;
    pointwise::add_assign(&sum, &middle, mb.math)?;
    Ok(layer.norm2.forward(params, &sum, mb.math)?.0)
}

/// Returns dL/dx. Sums of gradients are made in buffers that no deferred task shares.
pub(super) fn backward(
    layer: &TransformerLayer,
    params: &Params,
    grads: &mut GradientSink<'_>,
    activations: PostNormActivations,
    dy: &Tensor,
    mb: &MicroBatch,
) -> Result<Tensor> {
    let PostNormActivations { x, attention, sum1, stats1, middle, mlp, sum2, stats2 } = activations;
    let dsum = layer.norm2.backward(params, grads, &sum2, &stats2, dy, None, mb.math)?;
    drop(sum2);
    let dmlp = layer.dropout[1].backward(&dsum, mb)?;
    let dmiddle = layer.mlp.backward(params, grads, &middle, mlp, &dmlp, mb)?;
    drop((middle, dmlp));
    pointwise::add_assign(&dmiddle, &dsum, mb.math)?;
    let dsum = layer.norm1.backward(params, grads, &sum1, &stats1, &dmiddle, None, mb.math)?;
    drop((sum1, dmiddle));
    let dattention = layer.dropout[0].backward(&dsum, mb)?;
    let dx = layer.attention.backward(params, grads, &x, attention, &dattention, mb)?;
    pointwise::add_assign(&dx, &dsum, mb.math)?;
    Ok(dx)
}
