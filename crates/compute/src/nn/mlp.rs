//! Feed-forward layers: two matrices with an activation between them (GPT-2), which may be a gate (Llama).

use candle_core::{Result, Tensor};

use super::{BackwardPass, DropoutSite, ForwardPass, Linear};
use crate::kernels::{Gradient, pointwise};
use runner_spec::experiment::Activation;

/// A feed-forward layer.
#[derive(Debug, Clone, Copy)]
pub enum Mlp {
    Plain {
        up: Linear,
        activation: Activation,
        /// Drops elements of the activation's output.
        dropout: DropoutSite,
        down: Linear,
    },
    /// `gate_up` is the gate's matrix stacked on up's.
    Gated { gate_up: Linear, activation: Activation, dropout: DropoutSite, down: Linear },
}

/// The activations that the backward needs: the activation function's input, and its output after dropout.
#[derive(Debug)]
pub struct MlpActivations {
    pub(crate) before: Tensor,
    pub(crate) after: Tensor,
}

impl Mlp {
    /// The first and the last matrix.
    fn projections(&self) -> (Linear, Linear) {
        match *self {
            Self::Plain { up, down, .. } => (up, down),
            Self::Gated { gate_up, down, .. } => (gate_up, down),
        }
    }

    /// `x`: `[rows, d_model]`. Returns the same shape.
    pub fn forward(&self, pass: ForwardPass<'_>, x: &Tensor) -> Result<(Tensor, MlpActivations)> {
        let activations = self.hidden(pass, x)?;
        Ok((self.project(pass, &activations)?, activations))
    }

    /// The forward's last product, given what `hidden` returned.
    pub(super) fn project(&self, pass: ForwardPass<'_>, activations: &MlpActivations) -> Result<Tensor> {
        self.projections().1.forward(pass, &activations.after)
    }

    /// [`Self::project`] plus `residual`.
    pub(super) fn project_sum(
        &self,
        pass: ForwardPass<'_>,
        activations: &MlpActivations,
        residual: &Tensor,
    ) -> Result<Tensor> {
        self.projections().1.forward_sum(pass, &activations.after, residual)
    }

    /// The forward before its last product.
    pub(super) fn hidden(&self, pass: ForwardPass<'_>, x: &Tensor) -> Result<MlpActivations> {
        let (before, after) = match self {
            Self::Plain { up, activation, dropout, .. } => {
                let (before, after) = up.forward_activated(pass, x, *activation)?;
                dropout.apply(&after, pass.mb)?;
                (before, after)
            }
            Self::Gated { gate_up, activation, dropout, .. } => {
                let before = gate_up.forward(pass, x)?;
                let after = pointwise::gated(&before, *activation)?;
                dropout.apply(&after, pass.mb)?;
                (before, after)
            }
        };
        Ok(MlpActivations { before, after })
    }

    /// `x` is the forward's input. Returns dL/dx. Deferred tasks keep `x`, the activation's output, and the gradients of the
    /// activation's input and of the layer's output; not the activation's input.
    pub fn backward(
        &self,
        pass: &mut BackwardPass<'_>,
        x: &Tensor,
        activations: MlpActivations,
        dy: &Gradient,
    ) -> Result<Tensor> {
        let ((up, down), mb) = (self.projections(), pass.mb);
        let MlpActivations { before, after } = activations;
        // GELU's gradient is computed with the product, unless a dropout mask comes between them.
        let fused =
            matches!(self, Self::Plain { activation: Activation::Gelu, dropout, .. } if dropout.mask(mb).is_none());
        let dafter =
            if fused { down.backward_gelu(pass, &after, &before, dy)? } else { down.backward(pass, &after, dy)? };
        drop(after);
        let dbefore = match self {
            Self::Plain { .. } if fused => dafter,
            Self::Plain { activation, dropout, .. } => {
                // No other tensor shares this gradient's buffer.
                dropout.apply(&dafter, mb)?;
                pointwise::activate_backward(&dafter, &before, *activation)?;
                dafter
            }
            Self::Gated { activation, dropout, .. } => {
                dropout.apply(&dafter, mb)?;
                pointwise::gated_backward(&before, &dafter, *activation)?
            }
        };
        drop(before);
        up.backward(pass, x, &dbefore.into())
    }
}
