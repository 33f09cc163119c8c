//! A transformer layer with its norms after the sums (Vaswani et al. 2017): norm(x + attention(x)), then norm(x + mlp(x)).

use candle_core::{Result, Tensor};

use super::attention::AttentionActivations;
use super::mlp::MlpActivations;
use super::transformer::Attended;
use super::{BackwardPass, ForwardPass, TransformerLayer};
use crate::kernels::pointwise;

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

/// Returns the layer's output and its activations. `attend` runs the attention.
pub(super) fn forward(
    layer: &TransformerLayer,
    pass: ForwardPass<'_>,
    x: Tensor,
    attend: impl FnOnce(&Tensor) -> Result<Attended>,
) -> Result<(Tensor, PostNormActivations)> {
    let mb = pass.mb;
    let (sum1, attention) = attend(&x)?;
    layer.dropout[0].apply(&sum1, mb)?;
    pointwise::add_assign(&sum1, &x)?;
    let (middle, stats1) = layer.norm1.forward(pass, &sum1)?;
    let (sum2, mlp) = layer.mlp.forward(pass, &middle)?;
    layer.dropout[1].apply(&sum2, mb)?;
    pointwise::add_assign(&sum2, &middle)?;
    let (y, stats2) = layer.norm2.forward(pass, &sum2)?;
    Ok((y, PostNormActivations { x, attention, sum1, stats1, middle, mlp, sum2, stats2 }))
}

/// Returns dL/dx. Sums of gradients are made in buffers that no deferred task shares.
pub(super) fn backward(
    layer: &TransformerLayer,
    pass: &mut BackwardPass<'_>,
    activations: PostNormActivations,
    dy: &Tensor,
) -> Result<Tensor> {
    let mb = pass.mb;
    let PostNormActivations { x, attention, sum1, stats1, middle, mlp, sum2, stats2 } = activations;
    let dsum = layer.norm2.backward(pass, &sum2, &stats2, dy, None)?;
    drop(sum2);
    let dmlp = layer.dropout[1].backward(&dsum, mb)?;
    let dmiddle = layer.mlp.backward(pass, &middle, mlp, &dmlp)?;
    drop((middle, dmlp));
    pointwise::add_assign(&dmiddle, &dsum)?;
    let dsum = layer.norm1.backward(pass, &sum1, &stats1, &dmiddle, None)?;
    drop((sum1, dmiddle));
    let dattention = layer.dropout[0].backward(&dsum, mb)?;
    let dx = layer.attention.backward(pass, &x, attention, &dattention)?;
    pointwise::add_assign(&dx, &dsum)?;
    Ok(dx)
}
