//! The parts of a training step on one rank: forward, backward, clip, update. The order is the Program's business.

use std::sync::Arc;

use candle_core::{Device, Result, Tensor, bail};

use super::state::TrainState;
use crate::kernels::{Math, optimizer};
use crate::model::{Model, Output, ParamLayout, Params, Saved, init, parameters};
use crate::nn::MicroBatch;
use crate::optim;
use crate::plan::program::{OptimizerSpec, Precision, Program};

/// A model with its training state and gradients.
#[derive(Debug)]
pub struct Trainer {
    pub model: Model,
    pub state: TrainState,
    /// What the forward reads: the master weights, or their rounded copy in a bf16 run.
    pub weights: Params,
    /// Sums over the micro-batches of the current step.
    pub grads: Params,
    optimizer: OptimizerSpec,
    math: Math,
}

/// The layout of the parameters that `program`'s rank holds.
#[must_use]
pub fn layout(program: &Program) -> ParamLayout {
    ParamLayout::new(parameters(&program.model))
}

/// Weights as they start: step 0 of the run.
///
/// # Errors
/// If the device cannot hold them.
pub fn initial_state(program: &Program) -> Result<TrainState> {
    let layout = Arc::new(layout(program));
    let mut values = vec![0.0_f32; layout.total * (1 + program.moments())];
    for entry in &layout.entries {
        init::fill(&mut values[entry.range()], entry, program.seed);
    }
    let len = values.len();
    let buffer = Tensor::from_vec(values, len, &Device::Cpu)?;
    Ok(TrainState { step: 0, tokens: 0, best: None, layout, buffer, moments: program.moments() })
}

impl Trainer {
    /// Takes over `state`, which is of any element type that kernels know.
    ///
    /// # Errors
    /// If the state is not one of this program, or memory is short.
    pub fn new(program: &Program, state: TrainState) -> Result<Self> {
        let math = Math { bf16: program.precision == Precision::Bf16 };
        let total = state.layout.total;
        if state.buffer.elem_count() != total * (1 + program.moments()) {
            bail!("the training state does not have this optimizer's moments")
        }
        let blocks = 0..program.model.block_count();
        let model = Model::new(&program.model, state.layout.clone(), blocks, program.seed, math, &state.buffer)?;
        let flat = if math.bf16 {
            let copy = Tensor::zeros(total, state.buffer.dtype(), state.buffer.device())?;
            optimizer::copy_rounded(&copy, &state.weights()?)?;
            copy
        } else {
            state.weights()?
        };
        let grads = Tensor::zeros(total, state.buffer.dtype(), state.buffer.device())?;
        Ok(Self {
            weights: Params { layout: state.layout.clone(), flat },
            grads: Params { layout: state.layout.clone(), flat: grads },
            model,
            state,
            optimizer: program.optimizer,
            math,
        })
    }

    /// The loss of each token, and what the backward needs.
    ///
    /// # Errors
    /// If ids are beyond the vocabulary, or memory is short.
    pub fn forward(&self, mb: &MicroBatch) -> Result<(Vec<f32>, Vec<Saved>)> {
        match self.model.forward(&self.weights, None, mb)? {
            (Output::Losses(losses), saved) => Ok((losses, saved)),
            (Output::Hidden(_), _) => bail!("a stage without a head has no loss"),
        }
    }

    /// Adds the micro-batch's gradients.
    ///
    /// # Errors
    /// If memory is short.
    pub fn backward(&self, saved: Vec<Saved>, mb: &MicroBatch) -> Result<()> {
        self.model.backward(&self.weights, &self.grads, saved, None, mb)?;
        Ok(())
    }

    /// The global L2 norm of the gradients.
    ///
    /// # Errors
    /// None on a CPU.
    pub fn grad_norm(&self) -> Result<f64> {
        optimizer::norm(&self.grads.flat)
    }

    /// One optimizer step with the gradients times `grad_scale`, which are cleared; counts it.
    ///
    /// # Errors
    /// None on a CPU.
    pub fn update(&mut self, lr: f64, grad_scale: f64) -> Result<()> {
        optim::update(&self.state, &self.optimizer, &self.grads.flat, lr, grad_scale)?;
        if self.math.bf16 {
            optimizer::copy_rounded(&self.weights.flat, &self.state.weights()?)?;
        }
        optimizer::clear(&self.grads.flat)?;
        self.state.step += 1;
        Ok(())
    }
}
