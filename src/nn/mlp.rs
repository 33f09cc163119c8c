//! Feed-forward layers: GELU (GPT-2) and SwiGLU (Llama).

use candle_core::{Result, Tensor};

use super::{GradSink, Linear};
use crate::kernels::{Math, pointwise};
use crate::model::Params;

/// Up, activation, down.
#[derive(Debug, Clone, Copy)]
pub enum Mlp {
    Gelu {
        up: Linear,
        down: Linear,
    },
    /// `gate_up` is the gate's matrix stacked on up's.
    SwiGlu {
        gate_up: Linear,
        down: Linear,
    },
}

/// The activation's input and output.
#[derive(Debug)]
pub struct Saved {
    before: Tensor,
    after: Tensor,
}

impl Mlp {
    fn parts(&self) -> (Linear, Linear) {
        match *self {
            Self::Gelu { up, down } => (up, down),
            Self::SwiGlu { gate_up, down } => (gate_up, down),
        }
    }

    /// `x`: [rows, d_model]. Returns the same shape.
    pub fn forward(&self, params: &Params, x: &Tensor, math: Math) -> Result<(Tensor, Saved)> {
        let (up, down) = self.parts();
        let before = up.forward(params, x, math)?;
        let after = match self {
            Self::Gelu { .. } => pointwise::gelu(&before, math)?,
            Self::SwiGlu { .. } => pointwise::swiglu(&before, math)?,
        };
        Ok((down.forward(params, &after, math)?, Saved { before, after }))
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
        math: Math,
    ) -> Result<Tensor> {
        let (up, down) = self.parts();
        let Saved { before, after } = saved;
        let dafter = down.backward(params, grads, &after, dy, math)?;
        drop(after);
        let dbefore = match self {
            Self::Gelu { .. } => {
                pointwise::gelu_backward(&dafter, &before, math)?;
                dafter
            }
            Self::SwiGlu { .. } => pointwise::swiglu_backward(&before, &dafter, math)?,
        };
        drop(before);
        up.backward(params, grads, x, &dbefore, math)
    }
}
