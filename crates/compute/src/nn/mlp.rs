//! Feed-forward layers: two matrices with an activation between them (GPT-2), and SwiGLU (Llama).

use candle_core::{Result, Tensor};

use super::{Dropouts, GradSink, Linear, MicroBatch};
use crate::kernels::{Math, pointwise};
use crate::model::Params;
use runner_spec::experiment::Activation;

/// Up, activation, down.
#[derive(Debug, Clone, Copy)]
pub enum Mlp {
    Plain {
        up: Linear,
        activation: Activation,
        /// Behind the activation.
        dropout: Dropouts,
        down: Linear,
    },
    /// `gate_up` is the gate's matrix stacked on up's.
    SwiGlu { gate_up: Linear, down: Linear },
}

/// The activation's input, and its output behind dropout.
#[derive(Debug)]
pub struct Saved {
    before: Tensor,
    after: Tensor,
}

impl Mlp {
    fn parts(&self) -> (Linear, Linear) {
        match *self {
            Self::Plain { up, down, .. } => (up, down),
            Self::SwiGlu { gate_up, down } => (gate_up, down),
        }
    }

    /// `x`: [rows, d_model]. Returns the same shape.
    pub fn forward(&self, params: &Params, x: &Tensor, mb: &MicroBatch) -> Result<(Tensor, Saved)> {
        let saved = self.hidden(params, x, mb)?;
        Ok((self.project(params, &saved, mb.math)?, saved))
    }

    /// The forward's last product, of what `hidden` gave.
    pub(super) fn project(&self, params: &Params, saved: &Saved, math: Math) -> Result<Tensor> {
        self.parts().1.forward(params, &saved.after, math)
    }

    /// The forward before its last product.
    pub(super) fn hidden(&self, params: &Params, x: &Tensor, mb: &MicroBatch) -> Result<Saved> {
        let ((up, _), math) = (self.parts(), mb.math);
        let (before, after) = match self {
            Self::Plain { activation: Activation::Gelu, .. } => up.forward_gelu(params, x, math)?,
            Self::Plain { activation: Activation::Relu, .. } => {
                let before = up.forward(params, x, math)?;
                let after = pointwise::relu(&before)?;
                (before, after)
            }
            Self::SwiGlu { .. } => {
                let before = up.forward(params, x, math)?;
                let after = pointwise::swiglu(&before, math)?;
                (before, after)
            }
        };
        if let Self::Plain { dropout, .. } = self {
            dropout.apply(&after, mb)?;
        }
        Ok(Saved { before, after })
    }

    /// `x` as in the forward. Returns dL/dx. Weight work keeps `x`, the activation's output, and the gradients of the
    /// activation's input and of the layer's output; not the activation's input.
    pub fn backward(
        &self,
        params: &Params,
        grads: &mut GradSink<'_>,
        x: &Tensor,
        saved: Saved,
        dy: &Tensor,
        mb: &MicroBatch,
    ) -> Result<Tensor> {
        let ((up, down), math) = (self.parts(), mb.math);
        let Saved { before, after } = saved;
        let dafter = down.backward(params, grads, &after, dy, math)?;
        drop(after);
        let dbefore = match self {
            Self::Plain { activation, dropout, .. } => {
                // Nobody else has this gradient.
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
