//! Where weight gradients go: added at once, or kept as work for later (the split backward of zero-bubble schedules).

use candle_core::{Result, Tensor};

use super::{Embedding, Linear, MicroBatch};
use crate::kernels::{Math, pointwise};
use crate::model::Params;

/// What a backward does with weight gradients. Both ways add the same numbers in the same order.
#[derive(Debug)]
pub enum GradSink<'a> {
    /// Adds them to these buffers, so that activations can be freed on the way.
    Now(&'a Params),
    /// Only notes what they need; `WeightTask::run` adds them.
    Later(&'a mut Vec<WeightTask>),
}

/// Weight gradients that are still to be added, with the tensors that they need and no others. The tensors are shared, not
/// copied: nobody may change them in place meanwhile.
#[derive(Debug)]
pub enum WeightTask {
    /// A product: the layer's input and the gradient of its output.
    Linear { layer: Linear, x: Tensor, dy: Tensor },
    /// A norm's weight or bias. Its kernel makes dx and these in one pass, so only the sum is left to do.
    Vector { parameter: usize, gradient: Tensor },
    /// Rows of the tables: the gradient behind the dropout mask.
    Embedding { layer: Embedding, dy: Tensor },
}

impl GradSink<'_> {
    /// Of `layer`, given its input and the gradient of its output.
    pub fn linear(&mut self, layer: Linear, x: &Tensor, dy: &Tensor) -> Result<()> {
        match self {
            Self::Now(grads) => layer.backward_weight(grads, x, dy),
            Self::Later(tasks) => {
                tasks.push(WeightTask::Linear { layer, x: x.clone(), dy: dy.clone() });
                Ok(())
            }
        }
    }

    /// Where a kernel that makes several gradients in one pass is to add that of vector `parameter`, whose length and type
    /// are those in `params`.
    pub fn vector(&mut self, params: &Params, parameter: usize) -> Result<Tensor> {
        match self {
            Self::Now(grads) => grads.view(parameter),
            Self::Later(tasks) => {
                let gradient = params.view(parameter)?.zeros_like()?;
                tasks.push(WeightTask::Vector { parameter, gradient: gradient.clone() });
                Ok(gradient)
            }
        }
    }

    /// Of `layer`, given the gradient behind its dropout mask.
    pub fn embedding(&mut self, layer: &Embedding, dy: Tensor, mb: &MicroBatch) -> Result<()> {
        match self {
            Self::Now(grads) => layer.backward_weight(grads, &dy, mb),
            Self::Later(tasks) => {
                tasks.push(WeightTask::Embedding { layer: layer.clone(), dy });
                Ok(())
            }
        }
    }
}

impl WeightTask {
    /// Adds the gradients of micro-batch `mb`.
    pub fn run(self, grads: &Params, mb: &MicroBatch) -> Result<()> {
        match self {
            Self::Linear { layer, x, dy } => layer.backward_weight(grads, &x, &dy),
            // Weight gradients are never rounded.
            Self::Vector { parameter, gradient } => {
                pointwise::add_assign(&grads.view(parameter)?, &gradient, Math { bf16: false })
            }
            Self::Embedding { layer, dy } => layer.backward_weight(grads, &dy, mb),
        }
    }
}
