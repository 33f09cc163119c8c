//! Weight gradients of a backward, which are added at once or deferred (the split backward of zero-bubble schedules).

use candle_core::{Result, Tensor, bail};

use super::norm::NormVector;
use super::{Embedding, Linear};
use crate::kernels::{Gradient, embedding, pointwise};
use crate::nn::Params;

/// Receives weight gradients from a backward. Both variants add the same numbers in the same order.
#[derive(Debug)]
pub enum GradientSink<'a> {
    /// Adds them to these buffers, so that activations can be freed on the way.
    Add(&'a Params),
    /// Collects the tasks that will add them.
    Defer(DeferredGradients),
}

/// Weight gradients that are still to be added, with the tensors that they need and no others. The tensors are shared, not
/// copied: they must not be changed in place until the task has run.
#[derive(Debug)]
pub enum WeightGradientTask {
    /// A product: the layer's input and the gradient of its output.
    Linear { layer: Linear, x: Tensor, dy: Gradient },
    /// A norm's weight or bias. The norm's kernel computes dx and these in one pass, so only the sum is left to do.
    Vector { parameter: usize, gradient: Tensor },
    /// Rows of the embedding's tables: `dy` is the gradient before the dropout mask.
    Embedding { layer: Embedding, ids: Tensor, seq: usize, dy: Tensor },
    /// Rows of a table that was added in a sum.
    Table { parameter: usize, ids: Tensor, dy: Tensor },
}

/// The weight gradients of one block that are still to be added. The tasks of a layer keep the inputs of its linear layers and
/// the gradients of their outputs; those of the head, the logits' gradient and the projection's input; that of the embedding, the
/// gradient of its output; those of norms, their own gradients.
pub type DeferredGradients = Vec<WeightGradientTask>;

impl GradientSink<'_> {
    /// Runs `task`, or keeps it for later.
    pub fn accept(&mut self, task: WeightGradientTask) -> Result<()> {
        match self {
            Self::Add(grads) => task.run(grads),
            Self::Defer(tasks) => {
                tasks.push(match task {
                    WeightGradientTask::Linear { layer, x, dy } => {
                        WeightGradientTask::Linear { layer, x, dy: dy.summed()? }
                    }
                    other => other,
                });
                Ok(())
            }
        }
    }

    /// The tasks that were collected.
    pub fn into_deferred(self) -> DeferredGradients {
        match self {
            Self::Add(_) => Vec::new(),
            Self::Defer(tasks) => tasks,
        }
    }

    /// Runs `add`, which adds the gradients of a norm's `gain` and `bias` in one pass to the tensors that it gets. They are like `like`.
    /// Gradients of constants are dropped.
    pub fn accumulate_vectors<R>(
        &mut self,
        like: &Tensor,
        gain: &NormVector,
        bias: Option<&NormVector>,
        add: impl FnOnce(&Tensor, Option<&Tensor>) -> Result<R>,
    ) -> Result<R> {
        match self {
            Self::Add(grads) => {
                let with = |vector: &NormVector, add: &mut dyn FnMut(&Tensor) -> Result<()>| match vector.parameter() {
                    Some(index) => grads.accumulate(index, 1, add),
                    None => add(&like.zeros_like()?),
                };
                let (mut add, mut result) = (Some(add), None);
                let mut call = |dgain: &Tensor, dbias: Option<&Tensor>| {
                    if let Some(add) = add.take() {
                        result = Some(add(dgain, dbias)?);
                    }
                    Ok(())
                };
                with(gain, &mut |dgain| match bias {
                    Some(bias) => with(bias, &mut |dbias| call(dgain, Some(dbias))),
                    None => call(dgain, None),
                })?;
                match result {
                    Some(result) => Ok(result),
                    None => bail!("a gradient was not added"),
                }
            }
            Self::Defer(tasks) => {
                let mut defer = |vector: &NormVector| -> Result<Tensor> {
                    let gradient = like.zeros_like()?;
                    if let Some(parameter) = vector.parameter() {
                        tasks.push(WeightGradientTask::Vector { parameter, gradient: gradient.clone() });
                    }
                    Ok(gradient)
                };
                let dgain = defer(gain)?;
                let dbias = bias.map(defer).transpose()?;
                add(&dgain, dbias.as_ref())
            }
        }
    }
}

impl WeightGradientTask {
    /// Adds the gradients to `grads`.
    pub fn run(self, grads: &Params) -> Result<()> {
        match self {
            Self::Linear { layer, x, dy } => layer.backward_weight(grads, &x, &dy),
            Self::Vector { parameter, gradient } => {
                grads.accumulate(parameter, 1, |sum| pointwise::add_assign(sum, &gradient))
            }
            Self::Embedding { layer, ids, seq, dy } => layer.backward_weight(grads, &ids, seq, &dy),
            Self::Table { parameter, ids, dy } => {
                grads.accumulate(parameter, 1, |table| embedding::embed_backward(table, &ids, None, &dy))
            }
        }
    }
}
