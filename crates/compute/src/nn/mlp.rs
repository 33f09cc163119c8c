//! Feed-forward layers: two matrices with an activation between them (GPT-2), and SwiGLU (Llama).

use candle_core::{Result, Tensor};

use super::{DropoutSite, GradientSink, Linear, MicroBatch};
use crate::kernels::{Math, pointwise};
use crate::model::Params;
use runner_spec::experiment::Activation;

/// A feed-forward layer.
#[derive(Debug, Clone, Copy)]
pub enum Mlp {
    Plain {
        up: Linear,
        activation: Activation,
        /// After the activation.
        dropout: DropoutSite,
        down: Linear,
    },
    /// `gate_up` is the gate's matrix stacked on up's.
    SwiGlu { gate_up: Linear, down: Linear },
}

/// The activations that the backward needs: the activation function's input, and its output after dropout.
#[derive(Debug)]
pub struct MlpActivations {
    before: Tensor,
    after: Tensor,
}

impl Mlp {
    /// The first and the last matrix.
    fn projections(&self) -> (Linear, Linear) {
        match *self {
            Self::Plain { up, down, .. } => (up, down),
            Self::SwiGlu { gate_up, down } => (gate_up, down),
        }
    }

    /// `x`: [rows, d_model]. Returns the same shape.
    pub fn forward(&self, params: &Params, x: &Tensor, mb: &MicroBatch) -> Result<(Tensor, MlpActivations)> {
        let activations = self.hidden(params, x, mb)?;
        Ok((self.project(params, &activations, mb.math)?, activations))
    }

    /// The forward's last product, given what `hidden` returned.
    pub(super) fn project(&self, params: &Params, activations: &MlpActivations, math: Math) -> Result<Tensor> {
        self.projections().1.forward(params, &activations.after, math)
    }

    /// The forward before its last product.
    pub(super) fn hidden(&self, params: &Params, x: &Tensor, mb: &MicroBatch) -> Result<MlpActivations> {
        let ((up, _), math) = (self.projections(), mb.math);
        let (before, after) = match self {
            Self::Plain { activation: Activation::Gelu, .. } => up.forward_gelu(params, x, math)?,
            Self::Plain { activation: Activation::Relu, .. } => {
                let before = up.forward(params, x, math)?;
                (before.clone(), pointwise::relu(&before)?)
            }
            Self::SwiGlu { .. } => {
                let before = up.forward(params, x, math)?;
                (before.clone(), pointwise::swiglu(&before, math)?)
            }
        };
        if let Self::Plain { dropout, .. } = self {
            dropout.apply(&after, mb)?;
        }
        Ok(MlpActivations { before, after })
    }

    /// `x` is the forward's input. Returns dL/dx. Deferred tasks keep `x`, the activation's output, and the gradients of the
    /// activation's input and of the layer's output; not the activation's input.
    pub fn backward(
        &self,
        params: &Params,
        grads: &mut GradientSink<'_>,
        x: &Tensor,
        activations: MlpActivations,
        dy: &Tensor,
        mb: &MicroBatch,
    ) -> Result<Tensor> {
        let ((up, down), math) = (self.projections(), mb.math);
        let MlpActivations { before, after } = activations;
        let dafter = down.backward(params, grads, &after, dy, math)?;
        drop(after);
        let dbefore = match self {
            Self::Plain { activation, dropout, .. } => {
                // No other tensor shares this gradient's buffer.
                dropout.apply(&dafter, mb)?;
                match activation {
                    Activation::Gelu => pointwise::gelu_backward(&dafter, &before, math)?,
                    Activation::Relu => pointwise::relu_backward(&dafter, &before)?,
                }
                dafter
            }
            Self::SwiGlu { .. } => pointwise::swiglu_backward(&before, &dafter, math)?,
        };
        drop(before);
        up.backward(params, grads, x, &dbefore, math)
    }
}
